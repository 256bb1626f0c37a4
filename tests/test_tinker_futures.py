"""Results that Tinker's clients fetch later, and the order of a model's requests."""

import asyncio

import pytest

from areal_actors.core.errors import CheckpointError, RequestError
from areal_actors.tinker import futures
from areal_actors.tinker.futures import Futures, RequestFailure, RequestOrder


async def value(found):
    await asyncio.sleep(0)
    return {"found": found}


async def failing(error):
    raise error


async def test_a_result_can_be_fetched_again():
    kept = Futures()
    kept.start("a", value(1))
    assert [await kept.result("a", 30), await kept.result("a", 30)] == [{"found": 1}] * 2


async def test_a_retried_request_runs_once():
    kept, runs = Futures(), []

    async def count():
        runs.append(1)
        return {}

    for _ in range(3):
        kept.start("a", count())
    await kept.result("a", 30)
    assert runs == [1]


async def test_a_request_that_runs_has_no_result_yet():
    kept, go = Futures(), asyncio.Event()

    async def wait():
        await go.wait()
        return {"done": True}

    kept.start("a", wait())
    assert await kept.result("a", 0.01) is None
    go.set()
    assert await kept.result("a", 30) == {"done": True}


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (RequestError("no"), "user"),
        (CheckpointError("no"), "user"),
        (RuntimeError("no"), "server"),
        (ValueError("no"), "server"),
    ],
)
async def test_a_failure_is_a_result_with_its_category(error, category):
    kept = Futures()
    kept.start("a", failing(error))
    found = await kept.result("a", 30)
    assert isinstance(found, RequestFailure)
    assert found.category == category
    assert "no" in found.error


async def test_a_cancelled_request_fails_and_close_cancels_all():
    kept = Futures()
    kept.start("a", asyncio.sleep(3600))
    await asyncio.sleep(0)
    kept.start("b", asyncio.sleep(3600))
    kept.start("c", asyncio.sleep(3600))
    kept.cancel("a")
    kept.cancel("c")  # before it began
    kept.cancel("unknown")
    assert await kept.result("c", 30) == RequestFailure("the request was cancelled", "user")
    assert await kept.result("a", 30) == RequestFailure("the request was cancelled", "user")
    await kept.close()
    assert await kept.result("b", 30) == RequestFailure("the request was cancelled", "user")


async def test_an_unknown_or_forgotten_request_is_refused(monkeypatch):
    kept = Futures()
    kept.start("a", value(1))
    await kept.result("a", 30)
    monkeypatch.setattr(futures, "RESULT_SECONDS", 0.0)
    await asyncio.sleep(0.01)
    kept.start("b", value(2))
    for unknown in ("a", "never"):
        with pytest.raises(RequestError, match="there is no request") as error:
            await kept.result(unknown, 30)
        assert error.value.code == "not_found"
    await kept.result("b", 30)


async def test_requests_run_in_the_order_of_their_numbers():
    order, ran = RequestOrder(), []

    async def run(number):
        async with order.turn(order.number(number)):
            ran.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*map(run, (4, 2, 1, 3)))
    assert ran == [1, 2, 3, 4]
    assert [order.number(None), order.number(None), order.number(9), order.number(None)] == [5, 6, 9, 10]


async def test_a_request_after_a_failed_one_runs():
    order = RequestOrder()
    with pytest.raises(RuntimeError):
        async with order.turn(1):
            raise RuntimeError
    async with order.turn(2):
        pass


async def test_a_number_is_used_once():
    order = RequestOrder()
    async with order.turn(1):
        pass
    with pytest.raises(RequestError, match="seq_id is 1"):
        async with order.turn(1):
            pass


async def test_a_request_does_not_wait_forever_for_one_that_never_arrives(monkeypatch):
    monkeypatch.setattr(futures, "GAP_SECONDS", 0.05)
    order = RequestOrder()
    with pytest.raises(RequestError, match="waited 0 s for request 1, which never arrived"):
        async with order.turn(2):
            pass


async def test_a_long_request_is_not_a_missing_one(monkeypatch):
    monkeypatch.setattr(futures, "GAP_SECONDS", 0.02)
    order, ran = RequestOrder(), []

    async def run(number, seconds):
        async with order.turn(number):
            await asyncio.sleep(seconds)
            ran.append(number)

    await asyncio.gather(run(1, 0.2), run(2, 0))
    assert ran == [1, 2]
