"""The interval of a change of held-out scores, and the sentence about a run without a gain."""

from __future__ import annotations

import numpy as np
import pytest

from areal_actors.display.held_out_change import describe_missing_gain, measure_change
from areal_actors.display.run_state import RunState
from areal_actors.messages import EvaluationCompleted, StepCompleted


def test_the_interval_is_that_of_the_paper():
    change = measure_change(48 / 80, 56 / 70, 80, 70)  # Newcombe (1998), table II, (a), method 10
    assert (change.low, change.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_the_interval_holds_the_true_difference_as_often_as_stated():
    draws = np.random.default_rng(3)
    before, after = draws.binomial(60, 0.1, 4000) / 60, draws.binomial(60, 0.25, 4000) / 60
    changes = [measure_change(*pair, 60, 60) for pair in zip(before, after, strict=True)]
    held = np.mean([change.low <= 0.15 <= change.high for change in changes])
    assert 0.93 < held < 0.98


@pytest.mark.parametrize(("before", "after", "tasks"), [(-0.5, 0.2, 60), (0.1, 2.0, 60), (0.1, 0.2, 0)])
def test_rewards_outside_of_0_to_1_have_no_interval(before, after, tasks):
    assert measure_change(before, after, tasks, tasks) is None


def state_of(before, after, tasks=60):
    state = RunState(run="r")
    for step, accuracy in ((0, before), (4, after)):
        evaluation = {"accuracy": accuracy, "tasks": tasks, "failed": 0, "mean_tokens": 9.0, "samples": ()}
        state.fold(EvaluationCompleted(weight_version=step, mode="sampled", reward_mean=accuracy, **evaluation), step)
    metrics = {"groups": 16.0, "groups_without_signal": 11.0}
    state.fold(StepCompleted(step=4, metrics=metrics, weights_checksum="", sequences_checksum=""), 5.0)
    return state


def test_a_run_that_did_not_learn_does_not_end_like_one_that_did():
    assert describe_missing_gain(state_of(0.1, 0.8)) == ""
    sentence = describe_missing_gain(state_of(0.083, 0.05))
    assert sentence.startswith("the held-out score shows no gain (-0.033, 95 % interval -0.1")
    assert "within chance); 11 of 16 groups had equal rewards" in sentence
    assert "has fallen" in describe_missing_gain(state_of(0.8, 0.2))
