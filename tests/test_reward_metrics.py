"""Named metrics of reward functions: from the function to evaluations, trajectories and steps."""

from __future__ import annotations

import math

import pytest

from areal_actors.core.errors import RewardError
from areal_actors.rewards import check_score, resolve_reward
from areal_actors.rewards.reward_pool import RewardPool
from areal_actors.sequences.step_metrics import mean_metrics

TASK = {"id": "t", "answer": "#### 18"}


@pytest.mark.parametrize(
    ("value", "reward", "metrics"),
    [
        (1, 1.0, {}),
        ({"reward": 0.5}, 0.5, {}),
        ({"reward": True, "format": 1, "length": 12.5}, 1.0, {"format": 1.0, "length": 12.5}),
    ],
)
def test_a_reward_is_a_number_or_a_mapping_with_further_numbers(value, reward, metrics):
    score = check_score(value)
    assert (score, score.metrics) == (reward, metrics)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({}, "a mapping of metrics must have `reward`, got nothing"),
        ({"score": 1.0}, "a mapping of metrics must have `reward`, got 'score'"),
        ({"reward": None}, "a reward must be a real number, got None"),
        ({"reward": 1.0, "length": math.nan}, "a reward must be finite, got nan"),
        ({"reward": 1.0, "text": "long"}, "a reward must be a real number, got str 'long'"),
    ],
)
def test_another_mapping_is_refused(value, complaint):
    with pytest.raises(RewardError) as refused:
        check_score(value)
    assert str(refused.value) == complaint


async def test_metrics_come_from_the_process_of_the_reward(tmp_path):
    (tmp_path / "rewards.py").write_text(
        'def mine(task, output):\n    return {"reward": len(output), "lines": output.count(chr(10))}\n'
    )
    options = {"rewards.py:mine": {"weight": 0.5}, "gsm8k": {"weight": 2.0}}
    pool = RewardPool("weighted", 1, 20.0, tmp_path, options=options)
    try:
        score = await pool.score(TASK, "9 * 2 = 18\n#### 18")
    finally:
        await pool.close()
    assert score == 0.5 * 18 + 2.0
    assert score.metrics == {"rewards.py:mine": 18.0, "gsm8k": 1.0, "lines": 1.0, "shows_work": 1.0}


def test_gsm8k_reports_whether_an_answer_shows_its_work():
    reward = resolve_reward("gsm8k")
    assert reward(TASK, "18") == {"reward": 1.0, "shows_work": 0.0}
    assert reward(TASK, "<<9*2=18>>18") == {"reward": 1.0, "shows_work": 1.0}


def test_means_are_over_the_episodes_that_have_a_metric():
    assert mean_metrics([{"a": 1.0}, {}, {"b": 4.0, "a": 0.0}]) == {"a": 0.5, "b": 4.0}
