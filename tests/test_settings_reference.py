"""`areal-actors explain`, docs/settings.md and the JSON schema of recipes: complete, current, and true of the recipes
of the repository."""

from __future__ import annotations

import json
import runpy
import tomllib
from pathlib import Path

import jsonschema
import msgspec
import pytest

from areal_actors.cli import main
from areal_actors.core.devices import CudaDevices
from areal_actors.recipe.load import load
from areal_actors.recipe.other_names import OTHER_NAMES
from areal_actors.recipe.reference import json_schema, settings
from areal_actors.stages.stage_file import has_stages

ROOT = Path(__file__).parent.parent
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*.toml") if not has_stages(path))


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts/settings_reference.py"))


def test_the_page_and_the_schema_are_current(script):
    again = "run `python scripts/settings_reference.py`"
    assert script["PAGE"].read_text() == script["page"](), again
    assert script["SCHEMA"].read_text() == script["schema"](), again


def test_every_setting_has_a_meaning():
    assert [setting.name for setting in settings() if not setting.meaning] == []


def leaves(table, prefix=""):
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_setting_of_a_resolved_recipe_is_listed():
    recipe = load([ROOT / "recipes/gsm8k_grpo.toml"], [], CudaDevices(0, "none")).recipe
    known = {setting.name for setting in settings()}
    found = set(leaves(msgspec.to_builtins(recipe))) - {"algorithm.name"}
    assert len(found) > 150
    optional = {name for name in found if any(one.startswith(f"{name}.") for one in known)}
    assert {name for name in found - known - optional if not name.startswith("supervisors.")} == set()


def test_a_setting_has_the_default_of_the_recipe_that_does_not_state_it():
    (setting,) = [one for one in settings() if one.name == "trainer.optimizer.schedule"]
    assert (setting.type, setting.default) == ('"constant" or "cosine" or "linear"', '"constant"')
    clips = {name: one.default for one in settings() if one.name == "algorithm.clip" for name in one.algorithms}
    assert (clips["grpo"], clips["gspo"], clips["rloo"]) == ("0.2", "0.0003", "not set")


@pytest.fixture(scope="module")
def validator():
    """The schema of recipes, which is itself a valid one."""
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid_in_an_editor_and_its_typo_is_not(path, validator):
    data = tomllib.loads(path.read_text())
    validator.validate(data)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**data, "stepps": 3})


def test_explain_describes_settings_and_tables(capsys):
    assert main(["explain", "trainer.microbatch_tokens", "log"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("trainer.microbatch_tokens: whole number ≥ 1; default: 4096\n    Computed tokens")
    assert "log.keep: " in text
    assert "log.max_mb: " in text
    assert main(["explain"]) == 0
    assert len(capsys.readouterr().out) > 20_000
    assert main(["explain", "--json-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(json_schema()))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "trainer.microbatch_token",
            "`trainer.microbatch_token` is not a setting; did you mean `trainer.microbatch_tokens`",
        ),
        ("trainr", "`trainr` is not a setting"),
    ],
)
def test_explain_refuses_an_unknown_setting(capsys, name, complaint):
    assert main(["explain", name]) == 2
    assert capsys.readouterr().err.startswith(complaint)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("lr", ("algorithm.critic.lr = ", "trainer.optimizer.lr = ", "warm_start.lr = ")),
        ("num_generations", ("num_generations of other programs", "algorithm.group_size = 8")),
        ("actor.optimizer.lr", ("algorithm.critic.lr = ", "trainer.optimizer.lr = ", "warm_start.lr = ")),
        ("max_head_offpolicyness", ("max_head_offpolicyness of other", "staleness_gate.max_staleness = ")),
    ],
)
def test_explain_finds_settings_by_their_last_part_and_by_names_of_other_programs(capsys, name, lines):
    assert main(["explain", name]) == 0
    found = capsys.readouterr().out.splitlines()
    assert len(found) == len(lines)
    assert all(line.startswith(beginning) for line, beginning in zip(found, lines, strict=True))


def test_names_of_other_programs_mean_settings_that_there_are():
    names = {setting.name for setting in settings()}
    assert {ours for meant in OTHER_NAMES.values() for ours in meant} <= names
    assert not OTHER_NAMES.keys() & {name.rpartition(".")[2] for name in names}
