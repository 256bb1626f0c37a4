from __future__ import annotations

import asyncio

import pytest

from areal_actors.core.errors import AgentError
from areal_actors.core.values import Task
from areal_actors.library.workflow import RolloutWorkflow
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.episode_context import EpisodeContext, workflow_context
from areal_actors.rollout.group_runner import GroupRunner, runs_groups

SIZE = 3


class Debate(RolloutWorkflow):
    """Every member gets the place that it has among all."""

    def __init__(self, behave=None):
        self.behave = behave
        self.played = []

    async def arun_group(self, engines, data):
        self.played.append([engine.api_key for engine in engines])
        await asyncio.sleep(0.001)
        if self.behave:
            return await self.behave(engines)
        return [float(place) for place, _ in enumerate(engines)]


async def member(runner, group, number, *, attempt=1, purpose="train"):
    context = EpisodeContext(episode=f"{group}.{number}", group=str(group), attempt=attempt, purpose=purpose)
    with workflow_context.running(context):
        return await runner.run(Task(id=str(group), data={"q": 1}), base_url="u", api_key=f"k{group}.{number}")


async def all_of(runner, group, numbers=range(SIZE)):
    return await asyncio.gather(*(member(runner, group, number) for number in numbers), return_exceptions=True)


async def test_the_members_of_a_group_meet_and_each_continues_with_its_own_result():
    debate = Debate()
    runner = GroupRunner(debate, "debate", group_size=SIZE)
    both = await asyncio.gather(all_of(runner, 0, [2, 0, 1]), all_of(runner, 1))
    assert both == [[AgentResult(reward=float(place)) for place in places] for places in ([2, 0, 1], [0, 1, 2])]
    assert sorted(debate.played) == [["k0.0", "k0.1", "k0.2"], ["k1.0", "k1.1", "k1.2"]]


async def test_evaluation_and_further_attempts_play_alone():
    debate = Debate()
    runner = GroupRunner(debate, "debate", group_size=SIZE)
    assert await member(runner, 0, 1, attempt=2) == AgentResult(reward=0.0)
    assert await member(runner, 0, 1, purpose="evaluate") == AgentResult(reward=0.0)
    assert debate.played == [["k0.1"], ["k0.1"]]


@pytest.mark.parametrize(
    ("outcome", "complaint"),
    [
        (ValueError("no way"), "agent debate raised ValueError: no way at test_group_runner.py"),
        ([1.0], r"agent debate returned \[1.0\] from `arun_group`; return a list of 3 results"),
        (None, "agent debate returned None from `arun_group`"),
    ],
)
async def test_what_goes_wrong_in_a_group_reaches_every_member(outcome, complaint):
    async def behave(_):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    for error in await all_of(GroupRunner(Debate(behave), "debate", group_size=SIZE), 0):
        assert isinstance(error, AgentError)
        with pytest.raises(AgentError, match=complaint):
            raise error


async def test_one_member_s_nonsense_is_its_own():
    async def behave(_):
        return [1.0, [], "text"]

    first, second, third = await all_of(GroupRunner(Debate(behave), "debate", group_size=SIZE), 0)
    assert (first, third) == (AgentResult(reward=1.0), AgentResult(output="text"))
    assert isinstance(second, AgentError)


async def test_a_member_that_gives_up_before_the_others_come_leaves_its_seat():
    runner = GroupRunner(debate := Debate(), "debate", group_size=2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await member(runner, 0, 0)
    assert runner._gatherings == {}
    await all_of(runner, 0, [1, 0])
    assert debate.played == [["k0.0", "k0.1"]]


async def test_a_group_runs_on_until_no_caller_waits_for_it():
    ended = []

    async def behave(_):
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(True)

    runner = GroupRunner(Debate(behave), "debate", group_size=2)
    tasks = [asyncio.create_task(member(runner, 0, number)) for number in range(2)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    await asyncio.sleep(0.01)
    assert not ended
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0.01)
    assert ended == [True]


def test_only_a_workflow_with_arun_group_of_its_own_plays_groups():
    class Single(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            return 1.0

    class Foreign:
        async def arun_group(self, engines, data):
            return []

    assert [runs_groups(agent) for agent in (Debate(), Single(), Foreign(), object())] == [True, False, True, False]
