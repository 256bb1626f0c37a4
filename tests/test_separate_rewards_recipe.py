"""Rewards that are normalized one by one: what a recipe may name, and what `check` refuses."""

from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.sequences.credit import Credit

ROOT = Path(__file__).parent.parent
NO_CUDA = CudaDevices(0, "no CUDA device: libcuda.so.1 not found")
TWO = 'task.reward=["gsm8k", "format:answer-tag"]'
SEPARATE = "algorithm.reward_normalization=separate"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def resolved(*overrides):
    return load([Path("recipes", "gsm8k_grpo.toml")], list(overrides), cuda=NO_CUDA).recipe


def test_weights_are_those_of_the_list_or_replaced():
    light = 'task.reward_options={"format:answer-tag" = { weight = 0.2 }}'
    assert Credit.of(resolved(TWO, light).task).reward_weights == (("gsm8k", 1.0), ("format:answer-tag", 0.2))
    replaced = resolved(TWO, SEPARATE, 'task.reward_weights={gsm8k = 2.0, "format:answer-tag" = 1}')
    assert Credit.of(replaced.task).reward_weights == (("gsm8k", 2.0), ("format:answer-tag", 1.0))
    assert Credit.of(resolved().task).reward_weights == ()


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "sapo", "cispo", "m2po", "lite_ppo"])
def test_every_algorithm_that_divides_by_a_deviation_takes_it(name):
    assert resolved(TWO, SEPARATE, f"algorithm.name={name}").algorithm.reward_normalization == "separate"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            [],
            'task.reward = "gsm8k" has not two named rewards; write a list of rewards, or name in task.reward_weights',
        ),
        (['task.reward=["gsm8k"]'], "has not two named rewards; write a list of rewards"),
        ([TWO, "algorithm.name=dr_grpo"], "dr_grpo divides no reward by its standard deviation in a group"),
        ([TWO, "algorithm.name=rloo"], "rloo divides no reward"),
        ([TWO, "algorithm.name=ppo"], "ppo divides no reward"),
        ([TWO, "algorithm.name=reinforce_plus_plus"], "reinforce_plus_plus divides no reward"),
        ([TWO, "algorithm.scale_by_std=false"], "grpo divides no reward"),
        (
            [TWO, "task.reward_weights={gsm8k = 1.0, formt = 1.0}"],
            "`task.reward_weights.formt`: no reward has this name",
        ),
        ([TWO, "batcher.dynamic_sampling=true"], "drops groups whose sums are equal though single rewards differ"),
        ([TWO, "algorithm.shaping.scale=2.0"], "found 2.0, but rewards are normalized one by one"),
        ([TWO, "algorithm.kl={coefficient = 0.1, apply_to = 'reward'}"], "penalty would be normalized like a reward"),
        (
            [TWO, "algorithm.name=dapo", "algorithm.overlong={longest = 64, buffer = 16}"],
            "penalty would be normalized like a reward; leave it out",
        ),
    ],
)
def test_what_cannot_be_normalized_separately_is_refused(overrides, words):
    with pytest.raises(RecipeError) as refused:
        resolved(SEPARATE, *overrides)
    assert words in str(refused.value)


def test_weights_that_nothing_uses_are_refused():
    with pytest.raises(RecipeError, match='takes the weights of the sum; leave it out, or write "separate"'):
        resolved(TWO, "task.reward_weights={gsm8k = 1.0}")
