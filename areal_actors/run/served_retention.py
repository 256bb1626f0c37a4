"""Deletion of old sessions from the log of a served model, as `[log.retention]` has it.

The log loses its beginning up to the first session that is kept. Before that every fold stores snapshots without the
deleted sessions, and the served weights are published again, so that the rest of the log is all that a start needs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from areal_actors.audit.fold import AuditFold
from areal_actors.canary.served_versions import KINDS, ServedVersions
from areal_actors.core.snapshots import KEPT, SnapshotStore
from areal_actors.display.run_state import RunState
from areal_actors.display.snapshot_start import AUDIT, RUN_STATE
from areal_actors.folder.run_folder import RunFolder
from areal_actors.history.database import remove_database
from areal_actors.messages import CandidatePublished, LogTrimmed, SessionsErased, SnapshotsDue
from areal_actors.privacy.session_spans import SessionSpans
from areal_actors.privacy.settings import RetentionSettings
from areal_actors.recovery.log_retention import FOLDING, LogReaders, Reader, folds_of
from areal_actors.run.served_log import keep_asked_model
from areal_actors.training.checkpoint_store import folder_bytes
from areal_bus.base import Bus
from areal_bus.errors import BusError
from areal_bus.message import Event

CHECK_SECONDS = 3600.0
"""Longest time between two looks at the age and the size of the log."""
LOOKS = 24
"""Looks at the log in the age at which a session is deleted, at least."""
SNAPSHOT_SECONDS = 120.0
"""Time in which all folds have to store their snapshots; otherwise the next look deletes."""
POLL_SECONDS = 0.1
SECONDS_A_DAY = 86_400.0
GIGABYTE = 10**9
SPARE_SHARE = 0.1
"""Share of the limit that deletion by size leaves free, so that it is not due again at once."""

Publish = Callable[[Event], Awaitable[None]]
logger = structlog.get_logger(__name__)


class ServedRetention:
    """Deletes what is older or larger than the limits of a recipe; nothing else trims the log of a served model."""

    def __init__(
        self,
        settings: RetentionSettings,
        bus: Bus,
        folder: RunFolder,
        *,
        instances: Sequence[tuple[str, str]],
        publish: Publish,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`instances` are the actors of the served model, by name and kind."""
        self.settings, self.bus, self.folder = settings, bus, folder
        self.publish, self.now = publish, now
        self.store = SnapshotStore(folder.snapshots)
        readers: dict[str, Reader] = {RUN_STATE: RunState(), AUDIT: AuditFold()}
        self.readers = LogReaders(bus, self.store, readers, publish)
        self.folds = folds_of(instances, FOLDING, readers)
        self.spans = SessionSpans()
        self.versions = ServedVersions()
        self.erased: dict[str, int] = {}
        """Position of the erasure of each session that was erased on request."""
        self.candidate_at = 0
        """Position of the newest candidate's publication."""
        self.read_to = 0
        """Position of the last event that was read."""
        self.caught_up = asyncio.Event()
        """Set once the log has been read as far as it was at the start."""

    async def follow(self) -> None:
        """Read the log, without end."""
        last = (await self.bus.span()).last
        read = await self.readers.catch_up()
        async for envelope in self.bus.log(follow=True):
            self.spans.receive(envelope)
            if (kind := KINDS.get(envelope.subject)) is not None:
                self.versions.fold(envelope.open(kind))
                if kind is CandidatePublished:
                    self.candidate_at = envelope.sequence
            if envelope.subject == SessionsErased.subject:
                self.erased |= dict.fromkeys(envelope.open(SessionsErased).sessions, envelope.sequence)
            if envelope.sequence > read:
                self.readers.receive(envelope)
            self.read_to = envelope.sequence
            if envelope.sequence >= last:
                self.caught_up.set()

    async def watch(self) -> None:
        """Look at the log now and then, without end."""
        await self.caught_up.wait()
        age = self.settings.days * SECONDS_A_DAY
        seconds = max(min(CHECK_SECONDS, age / LOOKS), POLL_SECONDS) if age else CHECK_SECONDS
        while True:
            try:
                await self.delete_old()
            except BusError as error:
                logger.warning("no old session was deleted; the next look tries again", error=str(error))
            await asyncio.sleep(seconds)

    async def delete_old(self) -> LogTrimmed | None:
        """Delete what is beyond the limits; returns the event of it, None if there is nothing or it has to wait.

        Raises:
            BusError: the log cannot be read or trimmed.
        """
        span = await self.bus.span()
        first = await self._first_kept()
        if first <= span.first or not self._is_settled():
            return None
        (kept,) = await self.bus.read([first])
        if not (sessions := sum(start < first for start in self.spans.ended)):
            return None
        trimmed = LogTrimmed(first=first, step=0, removed=first - span.first, sessions=sessions, before=kept.time)
        await self.publish(trimmed)  # all folds forget the sessions before they store what they have
        for _ in range(KEPT):
            if not await self._store_snapshots():
                return None
        await self._publish_again(first)
        await self.bus.trim(first)
        await asyncio.to_thread(remove_database, self.folder.path)
        self.spans.forget(first)
        logger.info("deleted old sessions", sessions=sessions, events=trimmed.removed, first=first)
        return trimmed

    async def close(self) -> None:
        """Wait for snapshots that are being written."""
        await self.readers.close()

    # ---------------------------------------------------------------- what is beyond the limits

    async def _first_kept(self) -> int:
        """Returns the first event that the limits keep; that of the log if they keep all."""
        span = await self.bus.span()
        oldest, first = 0.0, span.first
        if self.settings.days:
            oldest = self.now() - self.settings.days * SECONDS_A_DAY
            first = await self._first_since(oldest)
        limit = self.settings.gigabytes * GIGABYTE
        size = span.bytes + await asyncio.to_thread(folder_bytes, self.folder.blobs)
        if limit and size > limit:
            share = 1 - limit * (1 - SPARE_SHARE) / size
            beyond = span.first + int(share * (span.last - span.first))
            if beyond > first:
                (envelope,) = await self.bus.read([beyond])
                first, oldest = beyond, max(oldest, envelope.time)
        if self._is_compared():
            first = min(first, self.candidate_at)
        return max(span.first, self.spans.first_kept(first, oldest))

    async def _first_since(self, oldest: float) -> int:
        """Returns the first event that was published at a time or later; the last one if none was."""
        span = await self.bus.span()
        low, high = span.first, span.last
        while low < high:
            middle = (low + high) // 2
            (envelope,) = await self.bus.read([middle])
            low, high = (middle + 1, high) if envelope.time < oldest else (low, middle)
        return low

    # ---------------------------------------------------------------- what a later start needs

    def _is_compared(self) -> bool:
        """Returns True if a candidate is undecided: its sessions stay until it is decided."""
        return self.versions.candidate is not None and self.versions.decided is None

    def _is_settled(self) -> bool:
        """Returns True if all new sessions have the weights that were published last."""
        served, published = self.versions.served, self.versions.published
        return published is not None and served is not None and served.weight_version == published.weight_version

    async def _store_snapshots(self) -> bool:
        """Have all folds store a snapshot; returns False if one does not in time."""
        before = (await self.bus.span()).last
        await self.publish(SnapshotsDue())
        with suppress(TimeoutError):
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                while not all(self.store.sequences(fold)[-1:] > [before] for fold in self.folds):  # noqa: ASYNC110 - files
                    await asyncio.sleep(POLL_SECONDS)
                return True
        late = [fold for fold in self.folds if self.store.sequences(fold)[-1:] <= [before]]
        logger.warning("no old session was deleted: snapshots are missing", folds=late, seconds=SNAPSHOT_SECONDS)
        return False

    async def _publish_again(self, first: int) -> None:
        """Publish again what is before the first event to keep, and counts on: weights, a decision, erasures.

        Rows that were learned from outlive the log, so that an erasure still has to reach them.
        """
        versions = self.versions
        await keep_asked_model(self.bus, versions)
        candidate = () if self._is_compared() else (versions.candidate, versions.decided)
        for event in (versions.published, *candidate):
            if event is not None:
                await self.publish(event)
        if erased := tuple(session for session, position in self.erased.items() if position < first):
            await self.publish(SessionsErased(sessions=erased, reason="erased earlier, in events that are deleted"))
