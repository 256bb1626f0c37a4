"""The log that a page shows.

Of an exported file, or of a run's folder, live or not; read once, kept as a copy, and followed.
The page only subscribes: details come from the copy, so that no browser causes a request to the run's server. Rows come
from the run's history, in memory: it begins with what `history.sqlite` has, and the log is folded beyond that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.snapshots import SnapshotStore
from areal_actors.display.run_state import RunState
from areal_actors.display.snapshot_start import restore_fold, trimmed_notice
from areal_actors.folder.connections import connect_to_run, open_log
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.history.database import DATABASE, History, copy_into_memory, store_copy
from areal_actors.messages import EngineStarting, Heartbeat, Throughput, TrainerProgress
from areal_actors.reader.log_events import is_of_this_log
from areal_actors.reader.recorded_history import log_files
from areal_actors.web.tables import PageTables
from areal_bus.base import Bus, Envelope
from areal_bus.errors import BusError, EventsTrimmed, ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.recorded import LogCopy, read_log

READING, LIVE, ENDED = "reading", "live", "ended"
SLICE_SECONDS = 0.02
"""Time after which reading lets the server answer requests."""
POLL_SECONDS = 1.0
"""Interval at which the end of a run, or its resumption, is noticed."""
WAIT_SECONDS = 0.005
"""Interval at which copying looks if requests have been answered."""
COPY_SECONDS = 0.05
"""Interval at which a request looks if the copy has its event."""
DRAIN_SECONDS = 1.0
"""Time for the last messages of a run that has ended to arrive."""

logger = structlog.get_logger(__name__)


class LogSource:
    """Reads a log into a history and a copy."""

    def __init__(
        self,
        copy: LogCopy,
        *,
        file: Path | None = None,
        place: RunFolder | None = None,
        bus: ServerAddress | None = None,
    ) -> None:
        """Exactly one of an exported log, a run's folder, and the address of a live run's bus is given."""
        self.tables, self.copy = (
            PageTables(copy_into_memory(place.path / DATABASE) if place else History.in_memory()),
            copy,
        )
        self.place = place
        self.recipe: dict[str, Any] = {}
        """The resolved recipe of a log whose start was trimmed, of a snapshot; empty otherwise."""
        self.copied = 0
        """Position of the last event that the copy has."""
        self.state = READING
        self.total = 0
        """Events that the log had when its reading began; 0 if unknown."""
        self.notice = ""
        """Sentence about what the log does not hold or what could not be read; empty otherwise."""
        self.telemetry = RunState()
        """Heartbeats and throughput of the live run."""
        self.telemetry_count = 0
        self._file, self._bus = file, bus
        self._is_wanted = False
        """True once a detail was asked for."""
        self._is_read = False
        """True while there is nothing more to copy: the log is over, or cannot be read further."""
        self._opened: NatsBus | None = None
        """The log of a run that is over, while it is copied."""
        self._asked = 0
        """Requests that read from it, which the copying waits for."""
        self._rested = time.monotonic()

    @property
    def history(self) -> History:
        """Rows of the events that were read."""
        return self.tables.history

    async def wait_copied(self, position: int) -> None:
        """Wait until the copy has an event of the history, or is as complete as the log allows."""
        self._is_wanted = True
        # It seldom waits
        while self.copied < min(position, self.history.progress.last) and not self._is_read:  # noqa: ASYNC110
            await asyncio.sleep(COPY_SECONDS)

    async def read_some(self, positions: Collection[int]) -> list[Envelope]:
        """Returns the events at these positions, in order, without those that the log no longer has.

        Of a run that is over they are read from its log itself, while the copy does not have them.
        """
        wanted = sorted({position for position in positions if position})
        self._is_wanted = True
        while wanted and self.copied < min(wanted[-1], self.history.progress.last) and not self._is_read:
            if self._opened is not None:
                self._asked += 1
                try:
                    return await self._opened.read(wanted)
                except BusError:  # one of them was trimmed: the copy has the others
                    pass
                finally:
                    self._asked -= 1
            await asyncio.sleep(COPY_SECONDS)
        return [envelope for position in wanted if (envelope := self.copy.read(position)) is not None]

    async def read(self) -> None:
        """Read the log; of a run's folder, follow it until cancelled."""
        try:
            if self._file is not None:
                await self._read_file(self._file)
            elif self._bus is not None:
                await self._follow_live(self._bus, None)
            else:
                assert self.place is not None
                await self._read_folder(self.place)
        except SetupError as error:
            self.notice = str(error)
        except (BusError, OSError) as error:
            self._note_stop(error)
        self.state, self._is_read = ENDED, True

    def _note_stop(self, error: Exception) -> None:
        last = self.history.progress.last
        self.notice = (
            f"The log could not be read further than event {last:,}; this page shows what is before. Reason: {error}"
        )
        logger.warning("the page shows a part of the log", reason=str(error), last=last)

    async def _read_file(self, file: Path) -> None:
        for envelope in read_log(file):
            await self._receive(envelope)
        self.copy.flush()

    async def _read_folder(self, place: RunFolder) -> None:
        while True:
            if place.live_supervisor():
                with suppress(
                    OSError, ServerUnavailable
                ):  # address and server vanish with the run; a server that was killed comes back
                    await self._follow_live(place.monitor(), place)
            elif (files := log_files(place)) and files == self.history.progress.log_files:
                self.state = ENDED  # the history is whole: the copy is made when a detail is asked for
                while not self._is_wanted and not place.live_supervisor():  # noqa: ASYNC110 - of two processes
                    await asyncio.sleep(COPY_SECONDS)
            await self._read_rest(place)
            self.state, self._is_read = ENDED, True
            while not place.live_supervisor():  # noqa: ASYNC110 - another process, which announces itself by a lock
                await asyncio.sleep(POLL_SECONDS)
            self.state, self._is_read = READING, False

    async def _read_rest(self, place: RunFolder) -> None:
        """Read what the log of an ended run has beyond the last event that was copied.

        Its store is open only meanwhile.
        """
        async with open_log(place) as bus:
            await self._begin(bus, place)
            self._opened = bus
            try:
                await self._receive_all(bus.log(after=self.copied))
            finally:
                self._opened = None
        self.copy.flush()
        if (files := log_files(place)) != self.history.progress.log_files and not place.live_supervisor():
            self.history.commit(files)
            await asyncio.to_thread(store_copy, self.history, place.path)

    async def _follow_live(self, address: ServerAddress, place: RunFolder | None) -> None:
        """Follow the log until the run is over or its server is gone."""
        async with connect_to_run(address, place, monitors=True) as bus:
            await self._begin(bus, place)
            following = asyncio.create_task(self._follow(bus))
            telemetry = asyncio.create_task(self._receive_telemetry(bus))
            ends = [asyncio.create_task(bus.wait_lost())]
            if place is not None:
                ends.append(asyncio.create_task(_describe_missing_log(place)))
            tasks = (following, telemetry, *ends)
            try:
                await asyncio.wait({following, *ends}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({following}, timeout=DRAIN_SECONDS)
                if following.done():
                    await following
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, bus: NatsBus) -> None:
        while True:
            try:
                await self._receive_all(bus.log(after=self.copied, follow=True))
            except EventsTrimmed as error:
                self.notice = (
                    f"Events after {self.copied:,} were trimmed from the log before this page read them: {error}"
                )
                self.copied = (await bus.span()).first - 1

    async def _begin(self, bus: Bus, place: RunFolder | None) -> None:
        """Prepare progress, and notices about a trimmed log."""
        if self.copied and await self._is_of_another_run(bus):
            name = self.history.progress.run
            raise SetupError(
                f"Another run has the name '{name}' now; this page shows the earlier one. Start `{COMMAND} view` again"
            )
        if not self.copied:
            if self.history.progress.last and not await is_of_this_log(self.history, bus):
                self.tables = PageTables(History.in_memory())
            state = RunState()
            await restore_fold(bus, SnapshotStore(place.snapshots) if place else None, state)
            self.notice = await trimmed_notice(bus, state)
            self.recipe = state.started.recipe if state.started is not None else {}
        self.total = (await bus.span()).last
        self._note_progress()

    async def _is_of_another_run(self, bus: Bus) -> bool:
        """Returns True if the log lacks the last event that was read: the name was given to a new run meanwhile."""
        progress, span = self.history.progress, await bus.span()
        if not progress.last or span.first > progress.last or span.last < progress.last:
            return span.last < progress.last
        (envelope,) = await bus.read([progress.last])
        return envelope.id != progress.last_id

    async def _receive_all(self, envelopes: AsyncIterator[Envelope]) -> None:
        async for envelope in envelopes:
            await self._receive(envelope)

    async def _receive(self, envelope: Envelope) -> None:
        if envelope.sequence > self.history.progress.last:
            self.history.receive(envelope)
        self.copy.write(envelope)
        self.copied = envelope.sequence
        self._note_progress()
        while self._asked:  # noqa: ASYNC110 - they seldom are
            await asyncio.sleep(WAIT_SECONDS)
        if time.monotonic() - self._rested > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._rested = time.monotonic()

    def _note_progress(self) -> None:
        if self.state == READING and self.history.progress.last >= self.total and self._bus_is_live():
            self.state = LIVE

    def _bus_is_live(self) -> bool:
        return self._bus is not None or (self.place is not None and bool(self.place.live_supervisor()))

    async def _receive_telemetry(self, bus: NatsBus) -> None:
        async with bus.telemetry(EngineStarting, Heartbeat, Throughput, TrainerProgress) as inbox:
            async for delivery in inbox:
                self.telemetry.fold(delivery.message, delivery.envelope.time)
                self.telemetry_count += 1


async def _describe_missing_log(place: RunFolder) -> str:
    while place.live_supervisor():  # noqa: ASYNC110 - it publishes nothing when it is killed
        await asyncio.sleep(POLL_SECONDS)
    return ""
