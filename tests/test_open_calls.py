"""The gateway knows what a pending model call waits for, and remembers it when the agent disconnects."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, GatewayHarness
from support.samples import published, work

from areal_actors.gateway.sessions.episode_end import expired_event
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.gateway.sessions.table import Session
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.gateway.worker_pool import InFlightCalls
from areal_actors.messages import (
    AgentReturned,
    DescribeSession,
    EpisodeAbandoned,
    ModelRequest,
    OpenSession,
    ScoreEpisode,
)
from areal_actors.rewards import reward_worker


@asynccontextmanager
async def gateway(*, weights=True):
    harness = GatewayHarness(GatewaySettings())
    await harness.serve("session_manager-0", harness.manager)
    if weights:
        await harness.publish(published(1))
    yield harness
    for task in harness.tasks.values():
        task.cancel()
    await asyncio.gather(*harness.tasks.values(), return_exceptions=True)


async def calls_of(harness, opened):
    described = await harness.bus.request(DescribeSession(session=opened.session), harness.stamp(), timeout=300)
    return described.open_calls


async def until_some(harness, opened, which=lambda call: True):
    async with asyncio.timeout(300):
        # Of anything
        while not (found := [call for call in await calls_of(harness, opened) if which(call)]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


@asynccontextmanager
async def calling(harness, opened):
    question = ModelRequest(session=opened.session, messages=tuple(HELLO))

    async def ask():
        async for _ in harness.bus.request_stream(question, harness.stamp(), timeout=300, to="session_manager-0"):
            pass

    asking = asyncio.create_task(ask())
    yield asking
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_call_that_an_engine_does_not_answer_waits_for_its_worker():
    async with gateway() as harness:
        await harness.engine("inference_worker-0", engine := FixedTextEngine(hold_at=0))
        opened = await harness.open()
        assert await calls_of(harness, opened) == ()
        async with calling(harness, opened):
            await engine.held.wait()
            (waits,) = await until_some(harness, opened)
            assert waits.waits_for == "inference_worker-0 (no token yet; it has 1 calls in flight)"
            assert (waits.at, waits.left) == ("engine", False)
            assert waits.seconds >= 0


async def test_a_call_that_no_worker_can_take_is_reported():
    async with gateway() as harness:
        opened = await harness.open()
        async with calling(harness, opened):
            (waits,) = await until_some(harness, opened, lambda call: call.at == "engine")
            assert waits.waits_for.startswith("an inference worker: none serves generation")


async def test_a_call_that_its_agent_has_left_is_remembered_with_the_time_it_had_waited():
    async with gateway() as harness:
        await harness.engine("inference_worker-0", engine := FixedTextEngine(hold_at=0))
        opened = await harness.open()
        async with calling(harness, opened):
            await engine.held.wait()
        (waits,) = await until_some(harness, opened, lambda call: call.left)
        assert (waits.at, waits.waits_for.split()[0]) == ("engine", "inference_worker-0")
        await asyncio.sleep(0.05)
        (again,) = await until_some(harness, opened, lambda call: call.left)
        assert again == waits, "it waits no longer"


async def test_an_answered_call_is_not_open():
    async with gateway() as harness:
        await harness.engine("inference_worker-0", FixedTextEngine())
        opened = await harness.open()
        async with calling(harness, opened) as asking:
            await asking
        assert await calls_of(harness, opened) == ()


async def test_the_session_that_took_an_episode_over_is_named_to_the_previous_one():
    async with gateway() as harness:
        first = await harness.open(work("3.1"))
        second = await harness.open(work("3.1"))
        described = await harness.bus.request(DescribeSession(session=first.session), harness.stamp(), timeout=300)
        assert described.replaced_by == second.session
        assert described.refused.status == 410


def test_calls_are_counted_by_the_clock_of_the_messages():
    calls = InFlightCalls()
    with calls.track("s", 10.0) as one:
        (waits,) = calls.describe("s", 13.0, {})
        assert (waits.seconds, waits.at, waits.waits_for) == (
            3.0,
            "gateway",
            "the gateway, which has not asked an inference worker yet",
        )
        one.assign("inference_worker-1")
        one.add_tokens(12, 15.0)
        (waits,) = calls.describe("s", 55.0, {"inference_worker-1": 7})
        assert waits.waits_for == "inference_worker-1 (12 tokens, the last 40 s ago; it has 7 calls in flight)"
    with pytest.raises(asyncio.CancelledError), calls.track("s", 60.0):
        raise asyncio.CancelledError
    calls.timestamp_left(64.0)
    (left,) = calls.describe("s", 99.0, {})
    assert (left.seconds, left.left) == (4.0, True)


def test_a_session_whose_agent_has_returned_ends_by_the_reward_and_not_as_abandoned():
    session = Session(id="s", api_key="k", work=work(), lease_seconds=180.0, expires=0.0)
    assert expired_event(session).reason == "lost"
    gone = expired_event(session.agent_returned())
    assert isinstance(gone, EpisodeAbandoned)
    assert gone.reason == "reward"
    assert gone.detail.startswith(
        "its agent returned, but no score arrived: the reward worker is gone, hangs, or is overloaded"
    )


async def test_the_gateway_knows_which_agents_have_returned(send):
    harness = GatewayHarness(GatewaySettings())
    await send(harness.manager, OpenSession(work=work(), lease_seconds=5.0))
    (session,) = harness.manager.registry._sessions.values()
    await send(harness.manager, AgentReturned(session=session.id))
    assert harness.manager.registry.get(session.id).returned
    await send(harness.manager, AgentReturned(session="unknown"))


def test_a_book_remembers_who_replaced_a_session():
    registry = SessionRegistry()
    for name in ("a", "b"):
        registry.open(Session(id=name, api_key=name, work=work("1.0"), lease_seconds=5.0, expires=0.0))
    assert (registry.replacement_of("a"), registry.replacement_of("b")) == ("b", "")


async def test_a_score_that_never_comes_is_the_failure_of_the_reward(send):
    class Stuck:
        async def score(self, task, output):
            await asyncio.sleep(100)

    worker = reward_worker.RewardWorker(Stuck(), concurrency=1, score_seconds=0.05)
    (gone,) = await send(worker, ScoreEpisode(work=work(), session="s", output="1"))
    assert gone.reason == "reward"
    assert gone.detail.startswith("no score within 0.05 s: the reward's processes do not start or are overloaded")
