"""Rewrites the intact part of a damaged log, the work queue and the values to a new store.

The server can neither truncate a stream at its end nor insert a missing event. The new store is built beside the old
one and replaces it once it is complete and synced to disk; the old one is kept under another name.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from nats.aio.msg import Msg

from areal_bus.durability import sync_store
from areal_bus.errors import LogUnavailable
from areal_bus.nats_reader import NatsLogReader
from areal_bus.nats_streams import Json, Streams
from areal_bus.payload import unpack

_TOGETHER: Final = 64
_UNFINISHED: Final = ".unfinished"
_REWRITTEN: Final = ".rewritten"


def unfinished_store(store: Path) -> Path:
    """Returns the folder in which the new store is built, after removing leftovers of an interrupted rewrite."""
    folder = store.with_name(store.name + _UNFINISHED)
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def aside_name(store: Path) -> Path:
    """Returns a free name for a damaged store that is set aside."""
    number = 1
    while (aside := store.with_name(f"{store.name}.damaged-{number}")).exists():
        number += 1
    return aside


def exchange(store: Path) -> Path:
    """Replace the old store by the new one, whose server has ended; returns the old one's new path."""
    rewritten = store.with_name(store.name + _REWRITTEN)
    sync_store(store.with_name(store.name + _UNFINISHED))
    store.with_name(store.name + _UNFINISHED).rename(rewritten)
    return _put_in_place(store, rewritten)


def finish_exchange(store: Path) -> None:
    """Complete an exchange that was interrupted by the end of the process."""
    rewritten = store.with_name(store.name + _REWRITTEN)
    if rewritten.is_dir():
        _put_in_place(store, rewritten)


def _put_in_place(store: Path, rewritten: Path) -> Path:
    aside = aside_name(store)
    if store.exists():
        store.rename(aside)
    rewritten.rename(store)
    return aside


async def copy_log(source: Streams, target: Streams, first: int, end: int) -> None:
    """Copy events `first` to `end` to a log of the same name on another server, with the same sequences.

    Raises:
        LogUnavailable: an event was written under another sequence.
    """
    config = await _config(source, source.log)
    await target.api(f"STREAM.CREATE.{target.log}", {**config, "first_seq": first})
    await copy_events(source, target, range(first, end + 1), first)


async def copy_events(source: Streams, target: Streams, events: Sequence[int], place: int) -> int:
    """Append events of a log, named by their ascending sequences, to a log on another server, of any name.

    `place` is the sequence of the first there. Returns the sequence of the last there, `place - 1` if there is none.

    Raises:
        LogUnavailable: an event was written under another sequence.
    """
    if not events:
        return place - 1
    reader = NatsLogReader(source, [source.prefix + ">"], "log copy")
    await reader.open("all", events[0] - 1)
    position = events[0]
    try:
        for start in range(0, len(events), _TOGETHER):
            payloads = []
            for wanted in events[start : start + _TOGETHER]:
                while position < wanted:
                    await reader.next_raw(position)
                    position += 1
                payloads.append((await reader.next_raw(wanted))[1])
                position += 1
            written = await asyncio.gather(*(_append(target, payload) for payload in payloads))
            expected = list(range(place + start, place + start + len(payloads)))
            if written != expected:
                raise LogUnavailable(
                    f"events {expected[0]} to {expected[-1]} were written as {written[0]} to {written[-1]}; the old log"
                    " is unchanged"
                )
    finally:
        await reader.close()
    return place + len(events) - 1


async def _append(target: Streams, payload: bytes) -> int:
    head = unpack(payload, where="the log")
    return await target.append(target.prefix + head.subject, payload, head.id)


async def create_empty_queue(source: Streams, target: Streams) -> None:
    """Create a work queue like the source's, without its items: their events may not be in the copy."""
    await target.api(f"STREAM.CREATE.{target.queue}", await _config(source, source.queue))


async def copy_values(source: Streams, target: Streams, overrides: Mapping[str, bytes]) -> None:
    """Copy the values of the run's bucket, with those in `overrides` replaced."""
    await target.api(f"STREAM.CREATE.{target.values}", await _config(source, source.values))
    for key in await keys(source):
        if (value := overrides.get(key, await source.get(key))) is not None:
            await target.put(key, value)


async def keys(streams: Streams, prefix: str = "") -> Sequence[str]:
    """Returns the keys of the run's bucket that begin with `prefix`."""
    bucket = streams.values.removeprefix("KV_")
    state = (await streams.api(f"STREAM.INFO.{streams.values}", {"subjects_filter": ">"}))["state"]
    names = [subject.removeprefix(f"$KV.{bucket}.") for subject in state.get("subjects") or {}]
    return sorted(key for key in names if key.startswith(prefix))


async def _config(streams: Streams, stream: str) -> Json:
    config: Json = (await streams.api(f"STREAM.INFO.{stream}", {}))["config"]
    return config


async def messages_of(streams: Streams, stream: str) -> AsyncIterator[Msg]:
    """Yield all messages of a stream."""
    sequence = 1
    while (message := await streams.next_from(stream, sequence)) is not None:
        yield message
        assert message.headers is not None
        sequence = int(message.headers["Nats-Sequence"]) + 1
