"""Messages of a run as lines: readable ones with shortened content, or JSON with all of it for other programs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec

from areal_actors.core.foreign_text import escape_controls
from areal_actors.messages.fields import fields_of
from areal_bus.base import Bus, Envelope
from areal_bus.subjects import matches

LONGEST_TEXT = 160


async def each_message(bus: Bus, subjects: str, handle: Callable[[Envelope], None]) -> None:
    """Pass on matching events of the log, and matching new messages, each once, until cancelled."""
    live: asyncio.Queue[Envelope | None] = asyncio.Queue()

    async def collect() -> None:
        try:
            async for envelope in bus.watch(subjects):
                live.put_nowait(envelope)
        finally:
            live.put_nowait(None)

    collecting = asyncio.create_task(collect())
    handled: set[str] = set()
    try:
        async for envelope in bus.log():
            if matches(subjects, envelope.subject):
                handled.add(envelope.id)
                handle(envelope)
        while (received := await live.get()) is not None:
            if received.id not in handled:
                handle(received)
        await collecting
    finally:
        collecting.cancel()


def readable_line(envelope: Envelope) -> str:
    """Returns time, position, subject, sender and shortened content."""
    place = f" #{envelope.sequence}" if envelope.sequence else ""
    content = (
        f"in {envelope.claim}"
        if envelope.claim
        else json.dumps(_shorten_value(fields_of(envelope)), ensure_ascii=False)
    )
    return f"{clock(envelope.time)}{place} {envelope.subject} from {envelope.sender}: {content}"


def json_line(envelope: Envelope) -> str:
    """Returns one JSON object: the envelope, and the whole message under `message`, with bytes as base64.

    `message` is null, and `claim` names the file, if the message is in a file of the run's blobs folder.
    """
    described = {
        "time": envelope.time,
        "sequence": envelope.sequence,
        "subject": envelope.subject,
        "sender": envelope.sender,
        "id": envelope.id,
        "cause": envelope.cause,
        "claim": envelope.claim,
        "message": None if envelope.claim else fields_of(envelope),
    }
    return escape_controls(msgspec.json.encode(described).decode())


def clock(at: float) -> str:
    """Returns the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _shorten_value(value: Any) -> Any:
    """Replace token columns by their size, and shorten long texts."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]}… ({len(value)} characters)"
    if isinstance(value, dict):
        return {name: _shorten_value(entry) for name, entry in value.items()}
    return [_shorten_value(entry) for entry in value] if isinstance(value, list) else value
