"""Integrity check of a run's log.

Every event is present, from the first to the last, and its body matches its checksum.
The server reports neither damaged blocks nor unreadable events: it skips them. So the log is read from end to end and
checked against consecutive sequence numbers; events after the first missing or damaged one cannot be folded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from areal_bus.base import Envelope
from areal_bus.claims import check_out
from areal_bus.errors import BusError, ClaimLost, LogDamaged
from areal_bus.message import FrozenMeta
from areal_bus.nats_reader import NatsLogReader
from areal_bus.nats_streams import STREAM_NOT_FOUND, ApiError, Streams
from areal_bus.payload import unpack

FIRST_MARK: Final = "_log.first"
"""Key of the sequence that the log was trimmed to, if it was."""


class LogCheck(msgspec.Struct, metaclass=FrozenMeta):
    """Result of a log check."""

    first: int
    """Sequence of the first event that the log should have: 1, or the trim point."""
    end: int
    """Sequence of the last intact event; one less than `first` if there is none."""
    last: int
    """Sequence of the last event according to the server."""
    damage: str = ""
    """Description of the damage at the event after `end`; empty if the log is intact."""


async def check_log(streams: Streams, each: Callable[[Envelope], object]) -> LogCheck:
    """Read the whole log; `each` is called with every intact event, in order, without large bodies.

    Raises:
        LogUnavailable: there is no log, or the server does not answer.
    """
    state = (await streams.api(f"STREAM.INFO.{streams.log}", {}))["state"]
    last, kept = int(state["last_seq"]), await streams.get(FIRST_MARK)
    first = int(kept) if kept else 1
    end, damage = first - 1, ""
    if last and int(state["first_seq"]) > first:
        damage = f"events {first} to {int(state['first_seq']) - 1} are missing, and were not trimmed"
        return LogCheck(first=first, end=end, last=last, damage=damage)
    reader = NatsLogReader(streams, [streams.prefix + ">"], "log check")
    try:
        if last > end:
            await reader.open("all", end)
        while end < last and not damage:
            try:
                sequence, payload = await reader.next_raw(end + 1)
            except LogDamaged:
                sequence, payload = last + 1, b""
            if sequence != end + 1:
                damage = f"event {end + 1} is missing"
            elif not (damage := _damage(streams, payload, sequence, each)):
                end = sequence
    finally:
        await reader.close()
    return LogCheck(first=first, end=end, last=last, damage=damage)


async def is_missing(streams: Streams, stream: str) -> bool:
    """True if the server's store does not have this stream."""
    try:
        await streams.api(f"STREAM.INFO.{stream}", {})
    except ApiError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        return True
    return False


def _damage(streams: Streams, payload: bytes, sequence: int, each: Callable[[Envelope], object]) -> str:
    """Returns the damage of an event; calls `each` with an intact one."""
    try:
        envelope = unpack(payload, where=f"event {sequence}", sequence=sequence)
        body = check_out(envelope, streams.blobs).body
    except ClaimLost as error:
        return f"the body of event {sequence} is lost: {error}"
    except BusError as error:
        return str(error)
    if zlib.crc32(body) != envelope.checksum:
        return f"the checksum of event {sequence} does not match"
    each(envelope)
    return ""
