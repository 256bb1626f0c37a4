from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, aclosing

import pytest

from areal_actors.core.errors import EngineError
from areal_actors.gateway import worker_pool
from areal_actors.gateway.held_prefixes import MAX_HELD, HeldPrefixes, SentPrompt
from areal_actors.gateway.worker_pool import (
    MARGIN_CALLS,
    MARGIN_SHARE,
    InFlightCalls,
    WaitForParts,
    WorkerExit,
    WorkerLost,
    WorkerPool,
)


def pool(*workers):
    made = WorkerPool()
    for worker in workers:
        made.record_load(worker, 0)
    return made


async def test_the_worker_with_the_least_in_flight_is_chosen():
    made = pool("b", "a")
    assert await made.choose(1) == "a"
    with made.count_call("a"):
        assert await made.choose(1) == "b"
        with made.count_call("b"), made.count_call("b"):
            assert await made.choose(1) == "a"
    assert made.in_flight == {"a": 0, "b": 0}


async def test_no_worker_within_the_timeout_is_an_error_with_the_seconds():
    with pytest.raises(EngineError, match=r"no inference worker has come up within 0\.01 s"):
        await pool().choose(0.01)


async def test_who_waits_for_a_worker_gets_the_first_that_comes_up():
    made = pool("a")
    made.remove_lost("a")
    waiting = asyncio.create_task(made.choose(5))
    await asyncio.sleep(0)
    made.record_load("b", 3)
    assert await waiting == "b"
    assert made.versions == {"b": 3}
    made.record_load("c", 2)
    assert made.newest_version == 3


async def test_a_restarted_worker_has_nothing_in_flight_from_before():
    made = pool("a")
    with made.count_call("a"):
        made.remove_lost("a")
        made.record_load("a", 1)
        assert made.in_flight == {"a": 0}
    assert made.in_flight == {"a": 0}


async def test_losing_a_stranger_changes_nothing():
    made = pool("a")
    made.remove_lost("b")
    made.remove_lost("a")
    made.remove_lost("a")
    assert made.versions == {}


async def turn(made, session):
    """One call of a session, from its choice to its end; returns its worker."""
    worker = await made.choose(1, session)
    with made.count_call(worker, session):
        return worker


async def busy(made, held, **calls):
    """Keep as many calls without a session in flight at each worker, until the stack `held` is closed."""
    for worker, number in calls.items():
        for _ in range(number):
            held.enter_context(made.count_call(worker))


async def test_the_next_call_of_a_session_goes_to_the_worker_that_served_the_last():
    made = pool("a", "b")
    with made.count_call("a"):
        assert await turn(made, "s") == "b"
    with made.count_call("b"):
        assert await made.choose(1) == "a"
        assert await turn(made, "s") == "b"
        assert await turn(made, "other") == "a"


@pytest.mark.parametrize(("fewest", "most"), [(0, 4), (16, 22), (128, 148)])
async def test_a_session_stays_within_the_margin_and_leaves_beyond_it(fewest, most):
    assert most == int(fewest + MARGIN_CALLS + fewest * MARGIN_SHARE)
    made = pool("a", "b")
    assert await turn(made, "s") == "a"
    async with AsyncExitStack() as held:
        await busy(made, held, a=most, b=fewest)
        assert await made.choose(1, "s") == "a"
        await busy(made, held, a=1)
        assert await turn(made, "s") == "b"
    assert await made.choose(1, "s") == "b"


async def test_the_first_calls_of_a_group_are_spread():
    made = pool("a", "b", "c")
    async with AsyncExitStack() as held:
        workers = []
        for number in range(7):
            workers.append(await made.choose(1, f"s{number}"))
            held.enter_context(made.count_call(workers[-1], f"s{number}"))
    assert workers == ["a", "b", "c", "a", "b", "c", "a"]
    assert [await turn(made, f"s{number}") for number in range(7)] == workers


@pytest.mark.parametrize("gone", ["lost", "loaded"])
async def test_a_worker_with_an_empty_cache_is_not_preferred(gone):
    made = pool("a", "b")
    for session in ("s", "t"):
        with made.count_call("b", session):
            pass
    with made.count_call("b", "running"):
        if gone == "lost":
            made.remove_lost("b")
        made.record_load("b", 1)
        assert await made.choose(1, "s") == await made.choose(1, "t") == "a"
    # A call in flight has its tokens in the cache of the new weights; one that the loss ended has not.
    assert await made.choose(1, "running") == ("a" if gone == "lost" else "b")


async def test_a_session_whose_completion_was_refused_is_not_bound_to_the_worker():
    made = pool("a", "b")
    with made.count_call("b", "s"):
        pass
    made.forget("s")
    made.forget("stranger")
    assert await made.choose(1, "s") == "a"


async def test_the_memory_of_sessions_is_bounded(monkeypatch):
    monkeypatch.setattr(worker_pool, "REMEMBERED_WORKERS", 2)
    made = pool("a", "b")
    for session in ("oldest", "s", "t"):
        with made.count_call("b", session):
            pass
    assert [await made.choose(1, session) for session in ("oldest", "s", "t")] == ["a", "b", "b"]


class Parts:
    """Yields what is put into it, and knows whether it was closed."""

    def __init__(self):
        self.queue, self.closed = asyncio.Queue(), False

    async def __call__(self):
        try:
            while (part := await self.queue.get()) is not None:
                yield part
        finally:
            self.closed = True


async def received_of(parts, gone, worker):
    """The parts of an answer, as a completion takes them."""
    async with aclosing(parts):
        with WaitForParts(gone, worker) as wait:
            while (part := await wait.next_of(parts)) is not None:
                yield part


async def test_parts_come_through_until_the_worker_is_gone():
    parts, gone = Parts(), WorkerExit()
    received = received_of(parts(), gone, "a")
    parts.queue.put_nowait(1)
    assert await anext(received) == 1
    asyncio.get_running_loop().call_soon(gone.set)
    with pytest.raises(WorkerLost, match="a died while it generated"):
        await anext(received)
    assert parts.closed


async def test_the_last_part_ends_the_parts():
    parts = Parts()
    for part in (1, 2, None):
        parts.queue.put_nowait(part)
    assert [part async for part in received_of(parts(), WorkerExit(), "a")] == [1, 2]
    assert parts.closed


async def test_who_stops_listening_leaves_nothing_running():
    parts = Parts()
    received = received_of(parts(), WorkerExit(), "a")
    before = asyncio.all_tasks()
    listening = asyncio.create_task(anext(received))
    await asyncio.sleep(0.001)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    await asyncio.sleep(0)
    assert parts.closed
    assert asyncio.all_tasks() == before


async def test_a_worker_that_goes_between_two_parts_is_missed_at_the_next():
    parts, gone = Parts(), WorkerExit()
    received = received_of(parts(), gone, "a")
    parts.queue.put_nowait(1)
    parts.queue.put_nowait(2)
    assert await anext(received) == 1
    gone.set()
    await asyncio.sleep(0)
    with pytest.raises(WorkerLost):
        await anext(received)
    assert parts.closed


async def test_who_is_cancelled_at_the_moment_in_which_the_worker_goes_stays_cancelled():
    parts, gone = Parts(), WorkerExit()
    received = received_of(parts(), gone, "a")
    listening = asyncio.create_task(anext(received))
    await asyncio.sleep(0)
    listening.cancel()
    gone.set()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert parts.closed


async def test_the_least_busy_of_many_workers_is_the_one_that_a_count_of_all_finds():
    dice, pool, calls = random.Random(0), WorkerPool(), []
    for number in range(20):
        pool.record_load(f"w{number:02}", 0)
    for _ in range(2000):
        move = dice.random()
        if calls and move < 0.45:
            await calls.pop(dice.randrange(len(calls))).aclose()
        elif move < 0.95:
            expected = min(pool.versions, key=lambda worker: (pool.in_flight[worker], worker))
            worker = await pool.choose(1.0)
            assert worker == expected
            calls.append(stack := AsyncExitStack())
            stack.enter_context(pool.count_call(worker))
        else:
            worker = dice.choice(sorted(pool.versions))
            pool.remove_lost(worker)
            pool.record_load(worker, 1)


async def test_a_worker_that_has_loaded_weights_is_no_longer_the_one_of_its_sessions():
    pool = WorkerPool()
    for worker in ("a", "b"):
        pool.record_load(worker, 0)
    with pool.count_call("b", "s"):
        pass
    assert await pool.choose(1.0, "s") == "b"
    pool.record_load("b", 1)
    assert await pool.choose(1.0, "s") == "a"


def test_calls_of_a_session_that_wait_together_for_a_first_token_count_once():
    calls = InFlightCalls()
    assert calls.queued_seconds("s", 5.0) == 0.0
    with calls.track("s", 10.0) as first, calls.track("s", 12.0) as second:
        assert calls.queued_seconds("s", 15.0) == 5.0
        first.add_tokens(1, 16.0)
        assert calls.queued_seconds("s", 18.0) == 8.0
        second.add_tokens(1, 20.0)
        first.add_tokens(63, 90.0)
        assert calls.queued_seconds("s", 95.0) == 10.0
    with calls.track("s", 100.0) as third:
        assert calls.queued_seconds("s", 103.0) == 13.0
        third.add_tokens(1, 104.0)
    assert calls.queued_seconds("s", 200.0) == 14.0
    assert calls.queued_seconds("t", 200.0) == 0.0


def test_what_a_worker_holds_is_forgotten_with_it_and_with_what_another_was_sent_later():
    pool = WorkerPool()
    for worker in ("a", "b"):
        pool.record_load(worker, 0)
    held, digests = pool.held, [bytes([number]) * 16 for number in range(3)]
    held.note(digests[0], "a")
    held.note(digests[1], "a")
    held.note(digests[1], "b")
    assert [held.is_held(digest, "a") for digest in digests] == [True, False, False]
    pool.record_load("a", 1)
    assert held.is_held(digests[0], "a"), "new weights change no tokens"
    pool.remove_lost("a")
    assert not held.is_held(digests[0], "a")
    pool.record_load("a", 1)
    assert not held.is_held(digests[0], "a"), "it has started again, with nothing"
    assert held.is_held(digests[1], "b")
    held.drop(SentPrompt(b"", digests[1], 1, digests[2]), "missing")
    assert not held.is_held(digests[1], "b")
    assert held.problems == {"missing": 1}


def test_the_prompts_that_workers_hold_are_remembered_up_to_a_limit():
    held = HeldPrefixes()
    for number in range(MAX_HELD + 1):
        held.note(number.to_bytes(16, "big"), "a")
    are_held = [held.is_held(number.to_bytes(16, "big"), "a") for number in range(MAX_HELD + 1)]
    assert MAX_HELD // 2 <= sum(are_held) <= MAX_HELD
    assert not are_held[0]
    assert all(are_held[-MAX_HELD // 2 :])
