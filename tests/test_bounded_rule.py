"""A bounded rule scores in the rollout worker as a reward worker's processes would, which get only long outputs."""

from __future__ import annotations

import msgspec
import psutil
import pytest
from support.samples import work

from areal_actors.core.errors import RewardError
from areal_actors.core.values import Task
from areal_actors.messages import EpisodeAbandoned, EpisodeScored, OpenSession, ScoreEpisode, SessionOpened
from areal_actors.rewards.bounded_rule import BOUNDED_RULES, LONGEST_OUTPUT, bounded_rule
from areal_actors.rewards.reward_pool import RewardPool
from areal_actors.rollout.agent_runner import AgentResult, LoadedRunner
from areal_actors.rollout.rollout_worker import RolloutWorker

TASK = {"id": "eggs-3", "question": "How many?", "answer": "9 * 2 = 18\n#### 18"}
WITHOUT_ANSWER = {"id": "eggs-4"}
OPENED = SessionOpened(session="s", base_url="http://gateway/s/v1", api_key="sk-1")
LONG = "so " * LONGEST_OUTPUT + "\n#### 18"


def children():
    return set(psutil.Process().children(recursive=True))


@pytest.mark.parametrize("reward", sorted(BOUNDED_RULES))
async def test_scores_and_failures_are_those_of_a_reward_worker_and_need_no_process(reward):
    before = children()
    rule, pool = bounded_rule(reward), RewardPool(reward, 1, 300.0)
    try:
        outputs = ["9 * 2 = 18\n#### 18", "17", "", "no number"]
        here = [rule.score(TASK, output) for output in outputs]
        with pytest.raises(RewardError) as caught:
            rule.score(WITHOUT_ANSWER, "18")
        assert children() == before
        assert here == [await pool.score(TASK, output) for output in outputs]
        assert [score.metrics for score in here] == [(await pool.score(TASK, output)).metrics for output in outputs]
        with pytest.raises(RewardError) as also:
            await pool.score(WITHOUT_ANSWER, "18")
    finally:
        await pool.close()
    assert str(caught.value) == str(also.value)
    assert "task eggs-4" in str(caught.value)


def test_other_rewards_are_scored_by_reward_workers():
    assert bounded_rule("math") is None
    assert bounded_rule("rewards.py:reward") is None


class Agent(LoadedRunner):
    """Returns a text."""

    def __init__(self, text):
        self.text = text

    async def run(self, task, *, base_url, api_key):
        return AgentResult(output=self.text)


@pytest.mark.parametrize(
    ("task", "output", "expected"),
    [
        (TASK, "9 * 2 = 18\n#### 18", (EpisodeScored, 1.0)),
        (TASK, "17", (EpisodeScored, 0.0)),
        (TASK, LONG, (ScoreEpisode, LONG)),
        (WITHOUT_ANSWER, "18", (EpisodeAbandoned, "reward")),
    ],
    ids=["right", "wrong", "long", "failed"],
)
async def test_the_rollout_worker_scores_what_the_rule_takes(send, task, output, expected):
    worker = RolloutWorker(Agent(output), concurrency=1, timeout_seconds=60.0, rule=bounded_rule("gsm8k"))
    run = msgspec.structs.replace(work("3.1"), task=Task(id=task["id"], data=task))
    messages = await send(worker, run, answers={OpenSession: lambda _: OPENED})
    end = messages[-1]
    found = {EpisodeScored: "reward", ScoreEpisode: "output", EpisodeAbandoned: "reason"}[type(end)]
    assert (type(end), getattr(end, found)) == expected
    assert len(messages) == (2 if isinstance(end, ScoreEpisode) else 1)
