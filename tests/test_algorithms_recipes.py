"""A recipe for every algorithm, the complaints about tables that cannot be run, and the table in the documentation."""

import runpy
from pathlib import Path

import pytest
from support.algorithm_cases import EVERY, FROM_REWARDS

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import plan

ROOT = Path(__file__).parent.parent
MAIN = ROOT / "recipes/gsm8k_grpo.toml"
MACHINES = {"cuda": CudaDevices(1, "1 CUDA device"), "embedded": CudaDevices(0, "no CUDA device")}
ARITHMETIC = "task.dataset=arithmetic"
"""For the other one a library is needed that is not always there."""


@pytest.fixture
def teacher(tmp_path, monkeypatch):
    """An override that names a teacher which is there."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "config.json").write_text("{}")
    return f"algorithm.teacher={tmp_path}"


@pytest.mark.parametrize("profile", MACHINES)
@pytest.mark.parametrize("tag", sorted(set(FROM_REWARDS) - {"grpo"}))
def test_every_algorithm_has_a_recipe_that_is_laid_over_the_main_one(tag, profile, teacher):
    recipe = ROOT / f"recipes/{tag}.toml"
    resolved = load([MAIN, recipe], [ARITHMETIC, *([teacher] if tag == "distillation" else [])], MACHINES[profile])
    assert type(resolved.recipe.algorithm) is EVERY[tag]
    assert resolved.profile == profile
    assert resolved.recipe.run == tag.replace("_", "-")
    assert len(recipe.read_text().splitlines()) < 40
    assert f"recipes/gsm8k_grpo.toml recipes/{tag}.toml" in recipe.read_text()


def test_dynamic_sampling_and_the_longest_answer_of_dapo_are_those_of_its_recipe(monkeypatch):
    monkeypatch.chdir(ROOT)
    for machine in MACHINES.values():
        recipe = load([MAIN, ROOT / "recipes/dapo.toml"], [ARITHMETIC], machine).recipe
        assert recipe.batcher.dynamic_sampling
        assert recipe.algorithm.overlong.longest == recipe.sampling.max_tokens


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            ["algorithm.group_size=1"],
            "`algorithm.group_size`: found 1, but an advantage compares an episode with the others of its group",
        ),
        (
            ['algorithm.kl={coefficient=0.1, estimator="k1"}'],
            '`algorithm.kl.estimator`: found "k1", whose gradient as a loss',
        ),
        (
            ['algorithm.kl={coefficient=0.1, reference="./nowhere"}'],
            '`algorithm.kl.reference`: found "./nowhere", but there is no such folder',
        ),
        (
            ['algorithm.kl={coefficient=0.1, reference="nowhere"}'],
            '`algorithm.kl.reference`: found "nowhere"; write "initial", a hub id',
        ),
        (
            ["algorithm.name=distillation", "algorithm.teacher=./nowhere"],
            '`algorithm.teacher`: found "./nowhere", but there is no such folder',
        ),
        (
            ["algorithm.name=distillation", "algorithm.teacher=runs/gone"],
            "name a checkpoint (runs/NAME/checkpoints/step-N), a hub",
        ),
        (
            ["algorithm.name=distillation", "algorithm.teacher=recipes/"],
            'found "recipes/", but no config.json in that folder',
        ),
        (
            ["algorithm.name=ppo", 'algorithm.critic.model="./nowhere"'],
            '`algorithm.critic.model`: found "./nowhere", but there is no such folder',
        ),
        (["algorithm.name=sapo", "algorithm.correction.highest=3"], "`algorithm.correction.highest` is not a setting"),
        (
            ["algorithm.name=gspo", "algorithm.correction.level=token"],
            '`algorithm.correction.level`: found "token", expected one of "sequence"',
        ),
        (
            ["algorithm.correction={decoupled=false, importance_sampling='mask'}"],
            '`algorithm.correction.importance_sampling`: found "mask", but with `decoupled = false`',
        ),
    ],
)
def test_a_table_that_cannot_be_run_is_refused_where_it_was_written(overrides, complaint, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(RecipeError) as caught:
        load([MAIN], overrides, MACHINES["embedded"])
    assert complaint in str(caught.value)


def test_the_table_in_the_documentation_is_what_the_script_makes_of_the_code():
    script = runpy.run_path(str(ROOT / "scripts/algorithms_table.py"))
    text = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    assert script["updated"](text) == text, "run `python scripts/algorithms_table.py`"
    assert all(f"`{tag}`" in text for tag in EVERY)


def test_the_plan_names_the_models_beside_the_trained_one():
    plan_text = "\n".join(
        plan(load([MAIN, ROOT / "recipes" / "ppo.toml"], ["algorithm.kl.coefficient=0.1"], MACHINES["embedded"]).recipe)
    )
    assert "reference   the initial model, frozen" in plan_text
    assert "critic      from the initial model, trained beside it" in plan_text
    assert "model       part of the package: a small model, warmed up by 1100 supervised steps" in plan_text
