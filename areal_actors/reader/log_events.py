"""Reads events of a run's log into its history, or some of them whole; loaded only where the log itself is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from areal_actors.core.snapshots import SnapshotStore
from areal_actors.display.run_state import RunState
from areal_actors.display.snapshot_start import restore_fold
from areal_actors.folder.connections import open_log
from areal_actors.folder.run_folder import RunFolder
from areal_actors.history.database import History
from areal_bus.base import Bus, Envelope
from areal_bus.errors import BusError, EventsTrimmed, LogUnavailable

T = TypeVar("T")


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread: notebooks have an event loop of their own in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def fold_rest(history: History, place: RunFolder) -> None:
    """Fold the events of a log beyond the last that the history has.

    If the log is damaged, those before the damage are folded, and `notice` names it.

    Raises:
        SetupError: the folder has no log.
        BusError: the log cannot be opened.
    """
    async with open_log(place) as bus:
        if history.progress.last and not await is_of_this_log(history, bus):
            history.clear()
        try:
            async for envelope in bus.log(after=history.progress.last):
                history.receive(envelope)
        except BusError as error:
            history.notice = f"only the first {history.progress.last:,} events are read: {error}"


async def is_of_this_log(history: History, bus: Bus) -> bool:
    """Returns False if the log lacks the last event that the history has.

    It is another log, was shortened, or trimmed further.
    """
    last, span = history.progress.last, await bus.span()
    if span.last < last:
        return False
    if span.first > last:
        return span.first == last + 1
    (envelope,) = await bus.read([last])
    return envelope.id == history.progress.last_id


def read_all(place: RunFolder, last: int) -> list[Envelope]:
    """Returns the events of a run's log up to a position; of a damaged log those before the damage.

    Raises:
        SetupError: the folder has no log.
        BusError: the log cannot be opened.
    """
    return in_thread(_read_all(place, last))


async def _read_all(place: RunFolder, last: int) -> list[Envelope]:
    envelopes: list[Envelope] = []
    async with open_log(place) as bus:
        try:
            async for envelope in _until(bus.log(), last):
                envelopes.append(envelope)  # noqa: PERF401 - those before a damage are kept
        except BusError:
            pass
    return envelopes


async def _until(log: AsyncIterator[Envelope], last: int) -> AsyncIterator[Envelope]:
    async for envelope in log:
        if envelope.sequence > last:
            return
        yield envelope


def read_some(place: RunFolder, positions: Sequence[int]) -> list[Envelope]:
    """Returns the events at these positions, in their order, without those that the log no longer has.

    Raises:
        SetupError: the folder has no log.
        BusError: the log cannot be opened.
    """
    return in_thread(_read_some(place, positions))


async def _read_some(place: RunFolder, positions: Iterable[int]) -> list[Envelope]:
    async with open_log(place) as bus:
        first = (await bus.span()).first
        there = [position for position in sorted(positions) if position >= first]
        try:
            return await bus.read(there)
        except (LogUnavailable, EventsTrimmed):
            return [envelope for position in there for envelope in await _read_if_there(bus, position)]


async def _read_if_there(bus: Bus, position: int) -> list[Envelope]:
    try:
        return await bus.read([position])
    except (LogUnavailable, EventsTrimmed):
        return []


def restore_state(place: RunFolder, state: RunState) -> int:
    """Restore a state from the newest snapshot of a run whose log has a trimmed beginning.

    Returns the position after which to fold.

    Raises:
        SetupError: the folder has no log.
        BusError: the log cannot be opened.
    """
    return in_thread(_restore_state(place, state))


async def _restore_state(place: RunFolder, state: RunState) -> int:
    async with open_log(place) as bus:
        return await restore_fold(bus, SnapshotStore(place.snapshots), state)
