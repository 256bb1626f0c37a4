"""Chunks of a streamed completion, joined so that a client gets some dozen a second instead of one for each token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import reduce

import msgspec

from areal_actors.generation.engine import TokenChunk

STREAM_INTERVAL_SECONDS = 0.08
"""Least time between two chunks of a stream: each costs engine, bus and gateway a message."""


async def pace_chunks(chunks: AsyncGenerator[TokenChunk, None]) -> AsyncGenerator[TokenChunk, None]:
    """Yield the first and the last chunk at once, between them all that arrived every `STREAM_INTERVAL_SECONDS`.

    Tokens never wait longer than that, even if the engine samples no further ones. Raises whatever `chunks` raises.
    """
    clock = asyncio.get_running_loop().time
    arrived: list[TokenChunk] = []
    any_arrived = asyncio.Event()

    async def collect() -> None:
        async for chunk in chunks:
            arrived.append(chunk)
            any_arrived.set()
            if chunk.finish_reason:
                break

    collecting = asyncio.create_task(collect())
    collecting.add_done_callback(lambda _: any_arrived.set())
    try:
        sent_at = float("-inf")
        while arrived or not collecting.done():
            await any_arrived.wait()
            if (remaining := sent_at + STREAM_INTERVAL_SECONDS - clock()) > 0:
                await asyncio.wait([collecting], timeout=remaining)
            sent_at, taken = clock(), arrived.copy()
            arrived.clear()
            if not collecting.done():
                any_arrived.clear()
            if taken:
                yield reduce(_join_chunks, taken)
        collecting.result()
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


def _join_chunks(first: TokenChunk, later: TokenChunk) -> TokenChunk:
    return msgspec.structs.replace(
        later,
        columns=first.columns.append(later.columns),
        top_ids=first.top_ids + later.top_ids,
        top_logprobs=first.top_logprobs + later.top_logprobs,
        routes=first.routes + later.routes,
    )
