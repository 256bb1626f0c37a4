"""Recipes with `[[task.mix]]`: settings of each source, and problems, with their places."""

from __future__ import annotations

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.core.values import SamplingParams
from areal_actors.recipe.load import load
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.plan import plan, to_toml

NO_CUDA = CudaDevices(count=0, reason="none")
RECIPE = """
run = "mix"
steps = 2
model = "embedded"
[task]
held_out = 20
system_prompt = "Count."
[[task.mix]]
name = "sums"
weight = 2
dataset = "arithmetic"
reward = ["gsm8k", "length:512"]
sampling = { max_tokens = 48 }
[[task.mix]]
name = "more"
dataset = "arithmetic"
held_out = 4
reward = "gsm8k"
[evaluation]
tasks = 24
[sampling]
max_tokens = 64
"""


@pytest.fixture
def read(tmp_path):
    def read(text, *overrides):
        path = tmp_path / "mix.toml"
        path.write_text(text)
        return load([path], overrides, NO_CUDA).recipe

    return read


def complaints(read, old, new, *overrides):
    assert old in RECIPE
    with pytest.raises(RecipeError) as refused:
        read(RECIPE.replace(old, new, 1), *overrides)
    return [line.partition("mix.toml")[2] for line in str(refused.value).splitlines()]


def test_a_source_has_the_settings_of_the_task_where_it_states_none(read):
    sums, more = source_recipes(read(RECIPE)).values()
    assert (sums.task.dataset, sums.task.held_out, more.task.held_out) == ("arithmetic", 20, 4)
    assert sums.task.system_prompt == more.task.system_prompt == "Count."
    assert (sums.task.reward, list(sums.task.reward_options)) == ("weighted", ["gsm8k", "length:512"])
    assert (more.task.reward, more.task.reward_options) == ("gsm8k", {})
    assert (sums.sampling, more.sampling) == (SamplingParams(max_tokens=48), SamplingParams(max_tokens=64))
    assert sums.task.mix == more.task.mix == ()


def test_an_environment_takes_the_place_of_dataset_agent_and_reward(read):
    text = RECIPE.replace("[task]\n", '[task]\ndataset = "arithmetic"\nreward = "gsm8k"\n', 1)
    recipe = read(text)
    game = type(recipe.task.mix[0])(name="game", environment="gymnasium:FrozenLake-v1")
    settings = recipe.task.of_source(game)
    assert (settings.dataset, settings.reward, settings.system_prompt, settings.runner) == ("", "", "", "subprocess")


def test_a_recipe_without_a_mixture_is_its_only_source(read):
    recipe = read(
        RECIPE.partition("[[")[0].replace("[task]", '[task]\ndataset = "arithmetic"\nreward = "gsm8k"'),
        "evaluation.tasks=20",
    )
    assert source_recipes(recipe) == {"": recipe}


def test_what_check_prints_reads_as_the_same_recipe(read, tmp_path):
    recipe = read(RECIPE)
    (tmp_path / "printed.toml").write_text(to_toml(recipe))
    assert load([tmp_path / "printed.toml"], (), NO_CUDA).recipe == recipe
    assert any("67% sums: arithmetic" in line and "33% more" in line for line in plan(recipe))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("weight = 2", "weight = 0", ":10: `task.mix.0.weight`: found 0, expected a number > 0.0"),
        ("weight = 2", "wieght = 2", ":10: `task.mix.0.wieght` is not a setting; did you mean `weight`?"),
        ('name = "more"', 'name = "sums"', ':8: `task.mix.name`: found 2 sources called "sums"; give each a name'),
        ('held_out = 4\nreward = "gsm8k"', 'reward = "gsm9k"', ":17: `task.mix.1.reward`: of source more: found"),
        ("max_tokens = 48", "temperature = 0.5", ":13: `task.mix.0.sampling.temperature`: found 0.5, but every token"),
        ("max_tokens = 48", "max_token = 8", ":13: `task.mix.0.sampling.max_token`: is no setting of `[sampling]`"),
        ("max_tokens = 48", "max_tokens = 99999", ":13: `task.mix.0.sampling.max_tokens`: of source sums: found 99999"),
        ("tasks = 24", "tasks = 25", ":20: `evaluation.tasks`: found 25, but the sources of task.mix keep only 24"),
        ("held_out = 20", 'agent = "online"', "`task.mix`: found sources, but external agents bring their tasks"),
        ("held_out = 20", 'environment = "gymnasium:X"', ":6: `task.environment`: found one beside `[[task.mix]]`"),
        ("[evaluation]", '[algorithm]\nname = "lite_ppo"\n[evaluation]', ":20: `algorithm.name`: divides by"),
        ("[evaluation]", "[algorithm]\nnormalize_advantages = true\n[evaluation]", "which compares the advantages"),
    ],
)  # fmt: skip
def test_problems_name_the_source_and_its_line(read, old, new, complaint):
    found = complaints(read, old, new)
    assert any(complaint in line for line in found), found
