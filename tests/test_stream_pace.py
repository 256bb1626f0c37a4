"""Streams with few chunks, on a loop with virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import pairwise

import pytest
from support.simulation import VirtualTimeLoop

from areal_actors.core.errors import EngineError
from areal_actors.core.values import TokenColumns
from areal_actors.generation.engine import TokenChunk
from areal_actors.generation.stream_pace import STREAM_INTERVAL_SECONDS, pace_chunks

TOKEN_SECONDS = 0.01


def chunk(token: int, finish_reason: str = "") -> TokenChunk:
    columns = TokenColumns.of([token], [-float(token)], [token // 4])
    return TokenChunk(
        columns=columns, top_ids=bytes([token]) * 4, top_logprobs=bytes([token]) * 4, finish_reason=finish_reason
    )


async def engine(waits: Sequence[float], *, ends: bool = True) -> AsyncGenerator[TokenChunk, None]:
    for token, seconds in enumerate(waits):
        await asyncio.sleep(seconds)
        yield chunk(token, "stop" if ends and token == len(waits) - 1 else "")


def streamed(waits: Sequence[float]) -> tuple[list[TokenChunk], list[float]]:
    async def read() -> tuple[list[TokenChunk], list[float]]:
        loop, found, times = asyncio.get_running_loop(), list[TokenChunk](), list[float]()
        began = loop.time()
        async for one in pace_chunks(engine(waits)):
            found.append(one)
            times.append(round(loop.time() - began, 6))
        return found, times

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(read())


def test_chunks_are_joined_in_order_with_all_columns():
    waits = [TOKEN_SECONDS] * 20
    found, _ = streamed(waits)
    assert 1 < len(found) < 8
    ids = [token for one in found for token in one.columns.ids_array().tolist()]
    assert ids == list(range(20))
    assert [value for one in found for value in one.columns.logprobs_array().tolist()] == [
        -float(token) for token in range(20)
    ]
    assert [version for one in found for version in one.columns.versions_array()] == [token // 4 for token in range(20)]
    assert b"".join(one.top_ids for one in found) == b"".join(bytes([token]) * 4 for token in range(20))
    assert b"".join(one.top_logprobs for one in found) == b"".join(bytes([token]) * 4 for token in range(20))
    assert [one.finish_reason for one in found] == [""] * (len(found) - 1) + ["stop"]


def test_first_and_last_tokens_are_passed_on_at_once():
    waits = [TOKEN_SECONDS] * 20
    _, times = streamed(waits)
    assert times[0] == pytest.approx(TOKEN_SECONDS)
    assert times[-1] == pytest.approx(20 * TOKEN_SECONDS)
    assert all(later - earlier >= STREAM_INTERVAL_SECONDS - 1e-6 for earlier, later in pairwise(times[:-1]))


def test_an_engine_slower_than_the_interval_is_passed_through():
    found, times = streamed([1.0] * 5)
    assert [len(one.columns) for one in found] == [1] * 5
    assert times == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])


def test_tokens_do_not_wait_for_an_engine_that_stands_still():
    found, times = streamed([0.0, TOKEN_SECONDS, 60.0])
    assert [len(one.columns) for one in found] == [1, 1, 1]
    assert times == pytest.approx([0.0, STREAM_INTERVAL_SECONDS, 60.0 + TOKEN_SECONDS], abs=1e-5)


def test_an_error_comes_after_the_tokens_before_it():
    async def failing() -> AsyncGenerator[TokenChunk, None]:
        yield chunk(0)
        yield chunk(1)
        raise EngineError("out of memory")

    found: list[int] = []

    async def read() -> None:
        async for one in pace_chunks(failing()):
            found.extend(one.columns.ids_array().tolist())

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, pytest.raises(EngineError, match="out of memory"):
        runner.run(read())
    assert found == [0, 1]


def test_a_reader_that_leaves_ends_the_collection():
    closed: list[bool] = []

    async def endless() -> AsyncGenerator[TokenChunk, None]:
        try:
            while True:
                await asyncio.sleep(TOKEN_SECONDS)
                yield chunk(1)
        finally:
            closed.append(True)

    async def read() -> int:
        async with aclosing(endless()) as chunks, aclosing(pace_chunks(chunks)) as parts:
            await anext(parts)
        return len(asyncio.all_tasks())

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(read()) == 1
    assert closed == [True]
