"""A bounded rule scores in the reward worker's process, as a pool of processes would, and long outputs in the pool."""

from __future__ import annotations

from contextlib import asynccontextmanager

import psutil
import pytest

from areal_actors.core.errors import RewardError
from areal_actors.rewards.reward_pool import RewardPool
from areal_actors.rewards.rule_scorer import BOUNDED_RULES, LONGEST_OUTPUT, RuleScorer

TASK = {"id": "eggs-3", "question": "How many?", "answer": "9 * 2 = 18\n#### 18"}


@asynccontextmanager
async def scorers(rule):
    pool = RewardPool(rule, 1, 300.0)
    scorer = RuleScorer(pool)
    try:
        yield scorer, pool
    finally:
        await scorer.close()


def children():
    return set(psutil.Process().children(recursive=True))


@pytest.mark.parametrize("rule", sorted(BOUNDED_RULES))
async def test_scores_and_failures_are_those_of_the_pool_and_need_no_process(rule):
    before = children()
    async with scorers(rule) as (scorer, pool):
        outputs = ["9 * 2 = 18\n#### 18", "17", "", "no number"]
        here = [await scorer.score(TASK, output) for output in outputs]
        with pytest.raises(RewardError) as caught:
            await scorer.score({"id": "eggs-4"}, "18")
        assert children() == before
        assert here == [await pool.score(TASK, output) for output in outputs]
        assert [score.metrics for score in here] == [(await pool.score(TASK, output)).metrics for output in outputs]
        with pytest.raises(RewardError) as also:
            await pool.score({"id": "eggs-4"}, "18")
    assert str(caught.value) == str(also.value)
    assert "task eggs-4" in str(caught.value)


async def test_a_long_output_is_scored_where_it_can_be_killed():
    before = children()
    async with scorers("gsm8k") as (scorer, _):
        long = "so " * LONGEST_OUTPUT + "\n#### 18"
        assert await scorer.score(TASK, long) == 1.0
        assert children() > before
