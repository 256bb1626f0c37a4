"""Causes of not learning are named in words, from metrics that a run really has, and only where they apply."""

import io

import pytest
from rich.console import Console
from support import story

from areal_actors.display.run_state import RunState
from areal_actors.display.summary import summary
from areal_actors.display.view import RunView
from areal_actors.display.warnings import WINDOW, attention
from areal_actors.messages import EvaluationCompleted, StepCompleted

HEALTHY = {
    "reward_mean": 0.5,
    "reward_std": 0.5,
    "groups": 16.0,
    "groups_without_signal": 4.0,
    "entropy": 0.9,
    "truncated_frac": 0.0,
    "masked_frac": 0.0,
    "effective_sample_size": 0.95,
    "skipped": 0.0,
}


def state_after(*steps):
    state = RunState()
    state.receive(story.sealed(story.STARTED))
    for number, metrics in enumerate(steps, 1):
        state.receive(
            story.sealed(StepCompleted(step=number, metrics=HEALTHY | metrics, sequences_checksum=""), 8.0 * number)
        )
    return state


def test_a_limit_that_follows_the_engines_counts_as_what_the_bound_allows():
    state = state_after({})
    assert state.started is not None
    state.started.recipe["staleness_gate"]["max_concurrent"] = "auto"
    assert attention(state) == []


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        (
            {"groups_without_signal": 14.0},
            "14 of 16 groups have equal rewards: nothing to learn from; batcher.dynamic_sampling = true draws",
        ),
        (
            {"groups_without_signal": 16.0, "reward_mean": 0.01},
            "16 of 16 groups have equal rewards: nothing to learn from; use easier tasks",
        ),
        (
            {"reward_std": 0.0, "reward_mean": 0.0},
            "all rewards of the last 5 steps are 0: nothing to learn from; use easier tasks, a stronger",
        ),
        (
            {"reward_std": 0.0, "reward_mean": 1.0},
            "all rewards of the last 5 steps are 1: nothing to learn from; use harder tasks",
        ),
        ({"truncated_frac": 0.6}, "60% of the answers are cut at sampling.max_tokens = 64: raise it"),
        (
            {"masked_frac": 0.4},
            "40% of the sampled tokens are older than staleness_gate.max_staleness = 2 and not trained",
        ),
        ({"effective_sample_size": 0.1}, "effective sample size 0.10): lower staleness_gate.max_staleness = 2"),
        ({"skipped": 1.0}, "100% of the last steps changed no weight"),
        (
            {"reward_share/format": 0.012, "reward_constant/format": 0.2},
            "the sum of rewards hides format: it differs in 80% of the groups, and is 1% of the advantage; write",
        ),
        (
            {"span_constant/step": 1.0},
            "the rewards of spans called step have one value in 100% of their groups, where they credit nothing; write",
        ),
    ],
)
def test_each_cause_has_its_sentence(metrics, sentence):
    (found,) = attention(state_after(*[metrics] * WINDOW))
    assert sentence in found


def test_a_healthy_or_a_young_run_has_none():
    assert attention(state_after(*[{}] * 40)) == []
    assert attention(state_after(*[{"truncated_frac": 1.0}] * (WINDOW - 1))) == []
    assert attention(RunState()) == []


def test_only_the_last_steps_count():
    assert attention(state_after(*[{"truncated_frac": 1.0}] * 10, *[{}] * WINDOW)) == []


def test_a_low_entropy_is_a_collapse_only_if_the_reward_has_fallen():
    learned = [{"entropy": 1.0 / step, "reward_mean": min(0.2 + step / 20, 0.95)} for step in range(1, 31)]
    assert attention(state_after(*learned)) == []
    fallen = [*learned, *[{"entropy": 0.01, "reward_mean": 0.3}] * WINDOW]
    (found,) = attention(state_after(*fallen))
    assert found.startswith("entropy has collapsed from 0.46 to 0.01 nats and the reward has fallen")


def test_metrics_that_a_run_lacks_are_no_cause():
    state = RunState()
    for number in range(1, 20):
        state.receive(
            story.sealed(StepCompleted(step=number, metrics={"loss": 1.0}, sequences_checksum=""), 8.0 * number)
        )
    assert attention(state) == []


def printed(renderable):
    console = Console(width=80, file=io.StringIO())
    console.print(renderable)
    return " ".join(console.file.getvalue().replace("│", " ").split())


def test_view_and_summary_show_it():
    view = RunView()
    view.state = state_after(*[{"truncated_frac": 0.6}] * WINDOW)
    assert "attention 60% of the answers are cut" in printed(view)
    assert "attention 60% of the answers are cut" in printed(summary(view.state, []))


def test_held_out_results_are_mean_rewards_where_rewards_are_graded():
    for reward_mean, words in ((0.71, "sampled 0.710 of 10 tasks"), (0.62, "sampled mean reward 0.620 of 10 tasks")):
        view = RunView()
        event = EvaluationCompleted(
            weight_version=4,
            mode="sampled",
            tasks=10,
            failed=0,
            accuracy=0.71,
            mean_tokens=3.0,
            reward_mean=reward_mean,
        )
        view.receive(story.sealed(event, 9))
        assert words in printed(view)


def test_a_reward_is_not_hidden_if_it_is_constant_or_normalized_on_its_own():
    constant = {"reward_share/format": 0.0, "reward_constant/format": 0.9}
    assert attention(state_after(*[constant] * WINDOW)) == []
    state = state_after(*[{"reward_share/format": 0.01, "reward_constant/format": 0.1}] * WINDOW)
    assert attention(state)
    assert state.started is not None
    state.started.recipe["algorithm"]["reward_normalization"] = "separate"
    assert attention(state) == []
