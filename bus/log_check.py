"""Whether a run's log is whole: every event in its place, from the first to the last, with a body whose checksum holds.

The server neither reports a damaged block nor an event that it cannot read: it leaves events out. So the log is read from end to
end and counted by our own sequence numbers; what lies behind the first missing or damaged event is of no use to a fold.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from bus.base import Envelope
from bus.claims import check_out
from bus.errors import BusError, ClaimLost, LogDamaged
from bus.message import FrozenMeta
from bus.nats_journal import STREAM_NOT_FOUND, ApiError, Journal
from bus.nats_reader import LogReader, unpack

FIRST_MARK: Final = "_log.first"
"""Key of the sequence that the log was trimmed to, if it was."""


class LogCheck(msgspec.Struct, metaclass=FrozenMeta):
    """What a log has."""

    first: int
    """Sequence of the first event that it should have: 1, or what it was trimmed to."""
    end: int
    """Of the last event of its good part; one less than `first` when there is none."""
    last: int
    """Of the last event as the server counts."""
    damage: str = ""
    """What was found instead of the event after `end`; empty for a log that is whole."""


async def check_log(journal: Journal, each: Callable[[Envelope], object]) -> LogCheck:
    """Read the whole log; `each` is given every event of the good part, in order, large bodies not in place.

    Raises:
        LogUnavailable: there is no log at all, or the server does not answer.
    """
    state = (await journal.api(f"STREAM.INFO.{journal.log}", {}))["state"]
    last, kept = int(state["last_seq"]), await journal.get(FIRST_MARK)
    first = int(kept) if kept else 1
    end, damage = first - 1, ""
    if last and int(state["first_seq"]) > first:
        damage = f"events {first} to {int(state['first_seq']) - 1} are missing, and were not trimmed"
        return LogCheck(first=first, end=end, last=last, damage=damage)
    reader = LogReader(journal, [journal.prefix + ">"], "log check")
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
            elif not (damage := _damage(journal, payload, sequence, each)):
                end = sequence
    finally:
        await reader.close()
    return LogCheck(first=first, end=end, last=last, damage=damage)


async def is_missing(journal: Journal, stream: str) -> bool:
    """Whether the server's store does not have this stream."""
    try:
        await journal.api(f"STREAM.INFO.{stream}", {})
    except ApiError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        return True
    return False


def _damage(journal: Journal, payload: bytes, sequence: int, each: Callable[[Envelope], object]) -> str:
    """What is wrong with an event; hands one that is sound to `each`."""
    try:
        envelope = unpack(payload, where=f"event {sequence}", sequence=sequence)
        body = check_out(envelope, journal.blobs).body
    except ClaimLost as error:
        return f"the body of event {sequence} is lost: {error}"
    except BusError as error:
        return str(error)
    if zlib.crc32(body) != envelope.checksum:
        return f"the checksum of event {sequence} does not hold"
    each(envelope)
    return ""
