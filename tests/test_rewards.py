"""Rewards by name, with their options: valid settings of a recipe, and those that are refused before anything
starts."""

import re
from pathlib import Path

import msgspec
import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.processes.process import has_tensors
from areal_actors.recipe.load import load
from areal_actors.rewards import REWARDS, resolve_reward
from areal_actors.rewards.reward_pool import RewardPool

ROOT = Path(__file__).parent.parent
TASK = {"id": "eggs-3", "question": "How many?", "answer": "#### 18"}


def test_options_of_a_rule_are_its_settings():
    assert resolve_reward("math", options={"field": "truth"})({"truth": "18"}, "18") == 1.0
    for name, options, complaint in [
        ("gsm8k", {"partial": True}, "`task.reward_options` of `gsm8k`: Object contains unknown field `partial`"),
        ("math", {"seconds": 0}, "`task.reward_options` of `math`: Expected `float` > 0.0 - at `$.seconds`"),
    ]:
        with pytest.raises(RecipeError, match=re.escape(complaint)):
            resolve_reward(name, options=options)


async def test_options_of_a_function_of_ones_own_are_its_keyword_arguments(tmp_path):
    (tmp_path / "mine.py").write_text("def long(task, output, *, most, unit='x'):\n    return min(len(output), most)\n")
    assert resolve_reward("mine.py:long", tmp_path, {"most": 2})({}, "abc") == 2
    for options in ({}, {"most": 2, "least": 1}):
        with pytest.raises(RecipeError, match=r"must take the task's row and the output: `def reward\(task, output"):
            resolve_reward("mine.py:long", tmp_path, options)
    pool = RewardPool("mine.py:long", 1, 20.0, tmp_path, options={"most": 2})
    assert await pool.score(TASK, "abc") == 2.0
    await pool.close()


def test_several_rewards_add_up_by_their_weights(tmp_path):
    (tmp_path / "mine.py").write_text("def shouts(task, output, sign='!'):\n    return output.count(sign)\n")
    options = {"gsm8k": {"weight": 1.0}, "mine.py:shouts": {"weight": -0.25, "sign": "?"}}
    reward = resolve_reward("weighted", tmp_path, options)
    assert [reward(TASK, output)["reward"] for output in ("18", "18 ??", "19 ?", "")] == [1.0, 0.5, -0.25, 0.0]
    with pytest.raises(RewardError, match="task eggs-4: `answer` must be a text"):
        reward({"id": "eggs-4"}, "18")


def test_a_part_that_is_no_number_fails_the_sum(tmp_path):
    (tmp_path / "mine.py").write_text("def nan(task, output):\n    return float(output)\n")
    reward = resolve_reward("weighted", tmp_path, {"mine.py:nan": {"weight": 0.0}})
    with pytest.raises(RewardError, match="a reward must be finite, got nan"):
        reward(TASK, "nan")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "`task.reward_options`: `weighted` adds up the rewards named here"),
        ({"math": 1.0}, "`task.reward_options.math`: must be a table with a finite `weight`"),
        ({"math": {"weight": float("nan")}}, "`task.reward_options.math`: must be a table with a finite `weight`"),
        ({"math": {"weight": True}}, "`task.reward_options.math`: must be a table with a finite `weight`"),
        ({"model:runs/m": {"weight": 1.0}}, "only rules and functions can be added up"),
        ({"weighted": {"weight": 1.0}}, "only rules and functions can be added up"),
        ({"mine.py:later": {"weight": 1.0}}, "a coroutine function cannot be added up"),
        ({"meth": {"weight": 1.0}}, "no reward is called `meth`; did you mean `math`?"),
    ],
)
def test_a_sum_that_makes_no_sense_is_refused(tmp_path, options, complaint):
    (tmp_path / "mine.py").write_text("async def later(task, output):\n    return 1\n")
    with pytest.raises(RecipeError, match=re.escape(complaint)):
        resolve_reward("weighted", tmp_path, options)


# ---------------------------------------------------------------- recipes


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = tmp_path / "options.toml"

    def read(text, *overrides):
        options.write_text(text)
        return load(
            [ROOT / "recipes/gsm8k_grpo.toml", options], ["profile=embedded", *overrides], CudaDevices(0, "none")
        ).recipe

    return read


def model_folder(folder, **config):
    folder.mkdir()
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    return folder


@pytest.mark.parametrize("name", REWARDS)
def test_every_rule_can_be_named_in_a_recipe(read, name):
    recipe = read("", f"task.reward={name}")
    assert (recipe.task.reward, recipe.task.reward_options) == (name, {})
    assert not has_tensors(recipe, "reward_worker")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("task.reward_options.partial = true", "`task.reward_options`: `partial` is not a setting"),
        (
            'task.reward = "math"\ntask.reward_options.secnds = 1',
            "`task.reward_options`: `secnds` is not a setting; did you mean `seconds`?",
        ),
        (
            'task.reward = "python_tests"\ntask.reward_options.partial = 1',
            "`task.reward_options`: `partial`: found 1, expected true or false",
        ),
        (
            'task.reward = "python_tests"\ntask.reward_timeout_seconds = 5',
            (
                "found 8, but the process is killed after task.reward_timeout_seconds = 5; write at most 4, or raise"
                " the deadline"
            ),
        ),
        ('task.reward = "jsonschema"', "did you mean `json_schema`?, or write `path.py:function`, or `model:folder`"),
        ('task.reward = "weighted"', "found none, but `weighted` adds up"),
        (
            'task.reward = "weighted"\ntask.reward_options.math = 1',
            "`task.reward_options.math`: found 1; write a table with a finite weight",
        ),
        (
            'task.reward = "weighted"\ntask.reward_options.math = { weight = 1, secnds = 2 }',
            "`task.reward_options.math`: `secnds` is not a setting; did you mean `seconds`?",
        ),
        (
            'task.reward = "weighted"\ntask.reward_options.gms8k.weight = 1',
            '`task.reward_options.gms8k`: found "gms8k"; did you mean `gsm8k`?',
        ),
        ('task.reward = "model:runs/none"', '`task.reward`: found "model:runs/none", but there is no such folder'),
        ('task.reward = "model:./none"\ntask.reward_options.batch = 1', "there is no such folder"),
    ],
)
def test_a_reward_that_does_not_fit_is_found_before_anything_starts(read, text, complaint):
    with pytest.raises(RecipeError, match=re.escape(complaint)):
        read(text)


def test_a_reward_model_is_looked_at_before_anything_starts(read, tmp_path):
    classifier = {"architectures": ["Qwen3ForSequenceClassification"], "max_position_embeddings": 2048}
    good = f'task.reward = "model:{model_folder(tmp_path / "good", **classifier)}"\n'
    recipe = read(good + "task.reward_options.batch_tokens = 4096")
    assert has_tensors(recipe, "reward_worker")
    assert not has_tensors(recipe, "rollout_worker")
    for text, complaint in [
        (good + "task.reward_options.batch_token = 1", "`batch_token` is not a setting; did you mean `batch_tokens`?"),
        (
            good + "profiles.embedded.generation.max_model_len = 4096",
            "found 4096, but the reward model reads at most 2048 tokens",
        ),
        (
            f'task.reward = "model:{model_folder(tmp_path / "llm", architectures=["Qwen3ForCausalLM"])}"',
            "whose model is Qwen3ForCausalLM",
        ),
        (f'task.reward = "model:{tmp_path}"', "but no config.json in that folder"),
    ]:
        with pytest.raises(RecipeError, match=re.escape(complaint)):
            read(text)
    assert read('task.reward = "model:Skywork/Skywork-Reward-V2-Qwen3-0.6B"').task.reward.startswith("model:")


def test_without_its_package_a_rule_is_refused(read, monkeypatch):
    monkeypatch.setattr("areal_actors.rewards.recipe_check.is_installed", lambda library: False)
    with pytest.raises(RecipeError, match=r"math_verify is not installed; pip install 'areal-actors\[rewards\]'"):
        read('task.reward = "math"')
