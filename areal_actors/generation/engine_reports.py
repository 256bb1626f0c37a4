"""Reads what an engine has loaded, and what its server does while it starts, for the messages of its worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from areal_actors.core.values import WeightsLocation
from areal_actors.generation.engine import Arrival, GenerationEngine, TokenChunk
from areal_actors.messages import Generated, WeightsLoaded, WeightTransferRefused

LoadReport = WeightsLoaded | WeightTransferRefused
ROUTES_LIMIT = 1 << 18
"""Most bytes of routes in one part of an answer."""


def report_loaded(
    worker: str, weight_version: int, location: WeightsLocation, engine: GenerationEngine | None
) -> Iterator[LoadReport]:
    """Yields the report of the loaded weights, and the reason if a server was given their folder instead."""
    loaded = WeightsLoaded(worker=worker, weight_version=weight_version, checksum=location.checksum)
    arrival: Arrival | None = getattr(engine, "arrival", None)
    if arrival is None:
        yield loaded
        return
    if arrival.failure:
        yield WeightTransferRefused(worker=worker, weight_version=weight_version, reason=arrival.failure)
    yield msgspec.structs.replace(
        loaded,
        checksum=arrival.checksum,
        channel=arrival.channel,
        sent_bytes=arrival.sent_bytes,
        whole_bytes=arrival.whole_bytes,
    )


def split_routes(routes: bytes, limit: int = ROUTES_LIMIT) -> list[bytes]:
    """Returns a column in pieces that fit into a message, at least one.

    Those of a long prompt do not fit into one together.
    """
    return [routes[start : start + limit] for start in range(0, len(routes), limit)] or [b""]


def starting_phase(engine: GenerationEngine | None) -> str:
    """Returns what an engine that is a server does while it starts; empty once it is ready, and for other engines."""
    phase: Callable[[], str] = getattr(engine, "phase", str)
    return phase()


def end_of_shared_server(engine: GenerationEngine) -> str:
    """Returns how the server of an engine has ended, if other policies use it; empty while it runs, and elsewhere."""
    describe: Callable[[], str] = getattr(engine, "describe_end", str)
    return describe()


def parts_of(chunk: TokenChunk) -> Iterator[Generated]:
    """Yield a chunk as parts of the answer: the experts of many positions take several."""
    *more, rest = split_routes(chunk.routes)
    for piece in more:
        yield Generated(routes=piece)
    yield Generated(
        columns=chunk.columns,
        routes=rest,
        top_ids=chunk.top_ids,
        top_logprobs=chunk.top_logprobs,
        finish_reason=chunk.finish_reason,
    )
