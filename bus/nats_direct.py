"""Reading the log by place, without a consumer: all that a monitor may do, and nothing stays at the server.

A batch is asked for by the sequence after the last event received; whatever disturbs it, the same question is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from time import monotonic
from typing import Final

import msgspec
from nats.aio.msg import Msg

from bus.base import Envelope, LogSpan
from bus.claims import check_out
from bus.errors import LogUnavailable, ServerUnavailable
from bus.nats_journal import Journal, Json
from bus.nats_link import status
from bus.nats_reader import unpack

_BATCH: Final = 64
_BATCH_BYTES: Final = 4 << 20
_ANSWER_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.25
"""Between two questions at the end of the log."""
_NOTHING_THERE: Final = "404"
_BATCH_ENDS: Final = "204"


async def read_directly(journal: Journal, *, after: int, follow: bool, patience: float) -> AsyncGenerator[Envelope, None]:
    """The log's events after this sequence, in order; with `follow`, never end.

    Raises:
        CorruptMessage: an event is damaged.
        LogUnavailable: the server has not given the next events within `patience` seconds.
        ServerUnavailable: the connection is lost for good.
        PermissionDenied: this user may not read the log.
    """
    while True:
        messages = await _batch(journal, after, patience)
        for message in messages:
            sequence = _sequence_of(message)
            envelope = unpack(message.data, where=f"sequence {sequence} of the log", sequence=sequence)
            after = sequence
            yield check_out(envelope, journal.blobs)
        if not messages:
            if not follow:
                return
            await asyncio.sleep(_LOOK_SECONDS)


async def span_directly(journal: Journal) -> LogSpan:
    """Where the log begins and ends, for a user who may not ask about the stream; its size is unknown.

    Raises:
        LogUnavailable: the server does not answer.
    """
    first, last = await journal.next_from(journal.log, 1), await journal.newest(journal.log)
    return LogSpan(first=_sequence_of(first) if first else 1, last=_sequence_of(last) if last else 0, bytes=0)


def _sequence_of(message: Msg) -> int:
    return int((message.headers or {})["Nats-Sequence"])


async def _batch(journal: Journal, after: int, patience: float) -> list[Msg]:
    """The next events; none at the end of the log."""
    question = {"seq": after + 1, "batch": _BATCH, "max_bytes": _BATCH_BYTES}
    deadline = monotonic() + patience
    while True:
        try:
            messages, end = await _ask(journal, question)
        except (TimeoutError, ServerUnavailable) as error:
            if journal.link.lost:
                raise ServerUnavailable(journal.link.lost) from error
            messages, end = [], str(error) or "no answer"
        if messages or end == _NOTHING_THERE:
            return messages
        if monotonic() >= deadline:
            raise LogUnavailable(f"{journal.log}: events after {after} were not given within {patience:g} s: {end}")
        await asyncio.sleep(_LOOK_SECONDS)


async def _ask(journal: Journal, question: Json) -> tuple[list[Msg], str]:
    """What the server gives, and the status with which it ends."""
    messages: list[Msg] = []
    with journal.link.inbox(until_return=True) as inbox:
        await journal.link.publish(f"$JS.API.DIRECT.GET.{journal.log}", msgspec.json.encode(question), reply=inbox.address)
        while True:
            try:
                message = await inbox.next(_ANSWER_SECONDS)
            except (TimeoutError, ServerUnavailable):
                if messages:
                    return messages, _BATCH_ENDS  # what has come has come
                raise
            if said := status(message):
                return messages, said
            messages.append(message)
