"""A new store with the good part of a damaged log, the queue of work and the values beside it.

The server can neither cut the end of a stream off nor take a missing event back. The new store is made beside the old one and
takes its place when it is complete and on the disk; the old one stays under another name.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.msg import Msg

from bus.durability import sync_store
from bus.errors import LogUnavailable
from bus.nats_journal import Journal, Json
from bus.nats_reader import LogReader

_TOGETHER: Final = 64
_UNFINISHED: Final = ".unfinished"
_REWRITTEN: Final = ".rewritten"


def unfinished_store(store: Path) -> Path:
    """Where the new store is made; what an interrupted rewriting left there is removed."""
    folder = store.with_name(store.name + _UNFINISHED)
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def aside_name(store: Path) -> Path:
    """Where the next store goes that is found damaged."""
    number = 1
    while (aside := store.with_name(f"{store.name}.damaged-{number}")).exists():
        number += 1
    return aside


def exchange(store: Path) -> Path:
    """Let the new store, whose server has ended, take the old one's place; returns where the old one is now."""
    rewritten = store.with_name(store.name + _REWRITTEN)
    sync_store(store.with_name(store.name + _UNFINISHED))
    store.with_name(store.name + _UNFINISHED).rename(rewritten)
    return _put_in_place(store, rewritten)


def finish_exchange(store: Path) -> None:
    """Complete an exchange that the end of the process interrupted."""
    rewritten = store.with_name(store.name + _REWRITTEN)
    if rewritten.is_dir():
        _put_in_place(store, rewritten)


def _put_in_place(store: Path, rewritten: Path) -> Path:
    aside = aside_name(store)
    if store.exists():
        store.rename(aside)
    rewritten.rename(store)
    return aside


async def copy_log(source: Journal, target: Journal, first: int, end: int) -> None:
    """Write the events from `first` to `end` to a log of the same name on another server, under the same sequences.

    Raises:
        LogUnavailable: an event came to stand in another place.
    """
    config = await _config(source, source.log)
    await target.api(f"STREAM.CREATE.{target.log}", {**config, "first_seq": first})
    reader = LogReader(source, [source.prefix + ">"], "log copy")
    await reader.open("all", first - 1)
    try:
        for start in range(first, end + 1, _TOGETHER):
            wanted = range(start, min(start + _TOGETHER, end + 1))
            payloads = [(await reader.next_raw(sequence))[1] for sequence in wanted]
            written = await asyncio.gather(*(_append(target, payload) for payload in payloads))
            if written != list(wanted):
                raise LogUnavailable(
                    f"events {wanted[0]} to {wanted[-1]} came to stand at {written[0]} to {written[-1]}; the old log is as it was"
                )
    finally:
        await reader.close()


class _Head(msgspec.Struct):
    subject: str
    id: str


_heads = msgspec.msgpack.Decoder(_Head)


async def _append(target: Journal, payload: bytes) -> int:
    head = _heads.decode(payload)
    return await target.append(target.prefix + head.subject, payload, head.id)


async def empty_queue(source: Journal, target: Journal) -> None:
    """Make a queue of work like the one of the source, without the items: they may follow from events that are not in the copy."""
    await target.api(f"STREAM.CREATE.{target.queue}", await _config(source, source.queue))


async def copy_values(source: Journal, target: Journal, instead: Mapping[str, bytes]) -> None:
    """Keep the values of the run's bucket there too, some of them replaced."""
    await target.api(f"STREAM.CREATE.{target.values}", await _config(source, source.values))
    for key in await keys(source):
        if (value := instead.get(key, await source.get(key))) is not None:
            await target.put(key, value)


async def keys(journal: Journal, prefix: str = "") -> Sequence[str]:
    """The keys of the run's bucket that begin so."""
    bucket = journal.values.removeprefix("KV_")
    state = (await journal.api(f"STREAM.INFO.{journal.values}", {"subjects_filter": ">"}))["state"]
    found = [subject.removeprefix(f"$KV.{bucket}.") for subject in state.get("subjects") or {}]
    return sorted(key for key in found if key.startswith(prefix))


async def _config(journal: Journal, stream: str) -> Json:
    config: Json = (await journal.api(f"STREAM.INFO.{stream}", {}))["config"]
    return config


async def messages_of(journal: Journal, stream: str) -> AsyncIterator[Msg]:
    """Everything that a stream still has."""
    sequence = 1
    while (message := await journal.next_from(stream, sequence)) is not None:
        yield message
        assert message.headers is not None
        sequence = int(message.headers["Nats-Sequence"]) + 1
