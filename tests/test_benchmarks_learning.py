"""The benchmarks of learning: how old what they train is, which recipes they run, and what they read from a run."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module
        for name in ("history", "seeds", "staleness", "learning"):
            sys.modules.pop(name, None)


class Rollouts:
    """Gives the weight version that sampled a batch."""

    def __init__(self):
        self.weight_version = 0

    def rollout_batch(self, tasks):
        return (self.weight_version, tasks)


@pytest.mark.parametrize("versions", [0, 1, 3, 9])
def test_every_step_trains_what_was_sampled_that_many_versions_before_or_at_the_beginning(benchmark, versions):
    rollouts, trained = Rollouts(), []
    for sampled_with, tasks in benchmark("staleness").delayed_batches(rollouts, iter(range(12)), 2, versions):
        trained.append((rollouts.weight_version - sampled_with, tasks))
        rollouts.weight_version += 1
    assert trained == [(min(step, versions), [2 * step, 2 * step + 1]) for step in range(6)]


def test_a_recipe_without_a_task_of_its_own_is_laid_over_the_main_one(benchmark):
    files_of = benchmark("learning").files_of
    names = {
        name: [file.name for file in files_of(name)]
        for name in ("grpo", "dapo", "distillation", "sft", "reward_model_grpo")
    }
    assert names == {
        "grpo": ["gsm8k_grpo.toml"],
        "dapo": ["gsm8k_grpo.toml", "dapo.toml"],
        "distillation": ["gsm8k_grpo.toml", "distillation.toml"],
        "sft": ["sft.toml"],
        "reward_model_grpo": ["reward_model_grpo.toml"],
    }


def test_a_run_on_examples_is_described_by_its_losses_before_the_first_step_and_after_the_last(benchmark):
    step = {"kind": "step.completed", "metrics": {"loss": 9.0}}
    evaluated = [
        {"kind": "loss.evaluated", "weight_version": n, "metrics": {"loss": 3.0 - n, "accuracy": n / 2}}
        for n in range(3)
    ]
    assert benchmark("learning").learning_metrics([evaluated[0], step, evaluated[1], step, evaluated[2]]) == {
        "steps": 2,
        "loss before": 3.0,
        "loss after": 1.0,
        "pairs before": 0.0,
        "pairs after": 1.0,
    }


def test_a_result_that_is_kept_is_recalled_as_it_was(benchmark, tmp_path):
    seeds, file = benchmark("seeds"), tmp_path / "results.jsonl"
    assert seeds.load_results(file, dict[str, float]) == []
    seeds.append_result(file, {"after": 0.5})
    seeds.append_result(file, {"after": 0.1 + 0.2})
    assert seeds.load_results(file, dict[str, float]) == [{"after": 0.5}, {"after": 0.1 + 0.2}]


def test_a_spread_is_lowest_median_and_highest(benchmark):
    assert benchmark("seeds").spread([0.9, 0.125, 0.5]) == "0.125 / 0.5 / 0.9"
