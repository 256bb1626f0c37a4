"""What the run itself folds from its log, with snapshots at checkpoints, and the trimming of what nobody needs any more.

A log larger than `log.max_mb` loses its beginning, up to the first event that one of these needs:

- the oldest of the newest `checkpoint.keep_last` checkpoints: the batches after it, and the trajectories of these batches and of
  groups that were not yet trained then (`BatchFormed.oldest_sequence`);
- the older of the two newest snapshots of every fold: actors, and the readers here.

The best checkpoint needs no log: what is trained on from it begins another run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import structlog

from areal_actors.messages import BatchFormed, CheckpointSaved, LogTrimmed, SnapshotStored
from areal_actors.settings import LogSettings
from areal_actors.snapshots import Fold, Snapshot, SnapshotStore, oldest, restore
from bus.base import Bus, Envelope
from bus.errors import BusError
from bus.message import Event

MEBIBYTE = 2**20
KEPT_OF_A_TRIMMED = 0.9
"""Trimming that would leave more than this share of the log is put off: the next checkpoint makes it worth more."""

Say = Callable[[Event], Awaitable[None]]
logger = structlog.get_logger(__name__)


class Reader(Fold, Protocol):
    """A fold over the whole log that is no actor."""

    def heard(self, envelope: Envelope) -> object:
        """Take in the next event."""
        ...


class LogReaders:
    """The readers of a run, by the names of their snapshots; they hear every event once, in order."""

    def __init__(self, bus: Bus, store: SnapshotStore, readers: Mapping[str, Reader], say: Say) -> None:
        self._bus, self._store, self._readers, self._say = bus, store, readers, say
        self._writing: set[asyncio.Task[None]] = set()

    async def catch_up(self) -> int:
        """Let every reader come to the end of the log, from its newest snapshot on; returns the log's last sequence.

        Raises:
            EventsTrimmed: a reader has no usable snapshot, and the log no longer has its first events.
        """
        last = 0
        for name, reader in self._readers.items():
            restored = await restore(self._bus, self._store, name, reader)
            last = restored.after
            for reason in restored.refused:
                logger.warning("a snapshot cannot be used", fold=name, reason=reason, begins_after=restored.after)
            async for envelope in self._bus.log(after=restored.after):
                reader.heard(envelope)
                last = envelope.sequence
        return last

    def heard(self, envelope: Envelope) -> None:
        """Let every reader take in the next event; after a checkpoint their snapshots are written meanwhile."""
        for name, reader in self._readers.items():
            reader.heard(envelope)
            if envelope.subject == CheckpointSaved.subject:
                taken = Snapshot.of(name, reader, envelope.sequence, envelope.id)
                task = asyncio.create_task(self._keep(taken))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)

    async def _keep(self, snapshot: Snapshot) -> None:
        try:
            await asyncio.to_thread(self._store.write, snapshot)
            await self._say(SnapshotStored(fold=snapshot.fold, after=snapshot.sequence, size=len(snapshot.state)))
        except (OSError, BusError) as error:
            logger.warning("a snapshot was not kept; the next start folds more of the log", fold=snapshot.fold, error=str(error))

    async def close(self) -> None:
        """Wait for the snapshots that are being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)


class LogRetention:
    """Trims the log of a run when it has become too large, as far as nothing needs it; the only one who does."""

    def __init__(
        self, settings: LogSettings, bus: Bus, store: SnapshotStore, *, folds: Iterable[str], keep_last: int, blobs: Path, say: Say
    ) -> None:
        """`folds`: the names of all whose snapshots must cover what is trimmed; `keep_last` checkpoints can be gone back to."""
        self.settings, self.bus, self.store, self.blobs, self.say = settings, bus, store, blobs, say
        self.folds = tuple(folds)
        self.keep_last = keep_last
        self._trimming: asyncio.Task[None] | None = None

    def heard(self, event: SnapshotStored, checkpoints: list[CheckpointSaved]) -> None:
        """A snapshot was stored; when it was the last of its checkpoint, the log is trimmed if it is too large."""
        if self.settings.keep == "all" or (self._trimming is not None and not self._trimming.done()):
            return
        if all(self.store.sequences(fold)[-1:] == [event.after] for fold in self.folds):
            self._trimming = asyncio.create_task(self._trim_if_too_large(checkpoints[-self.keep_last :]))

    async def _trim_if_too_large(self, kept: list[CheckpointSaved]) -> None:
        try:
            span = await self.bus.span()
            size = span.bytes + await asyncio.to_thread(_size_of, self.blobs)
            if size <= self.settings.max_mb * MEBIBYTE:
                return
            first = await self.needed(kept)
            if first - span.first > (1 - KEPT_OF_A_TRIMMED) * (span.last - span.first):
                await self.say(LogTrimmed(first=first, step=kept[0].step, removed=first - span.first))
                started = time.monotonic()
                await self.bus.trim(first)
                logger.info("trimmed the log", first=first, removed=first - span.first, seconds=round(time.monotonic() - started, 3))
        except BusError as error:
            logger.warning("the log was not trimmed; it is tried again at the next checkpoint", error=str(error))

    async def needed(self, kept: list[CheckpointSaved]) -> int:
        """Sequence of the first event that a kept checkpoint or a snapshot needs; 1 while all may be."""
        if len(kept) < self.keep_last or not kept[0].cursor or not (snapshots := oldest(self.store, self.folds)):
            return 1
        (batch,) = await self.bus.read([kept[0].cursor])
        trained = batch.open(BatchFormed).oldest_sequence if batch.subject == BatchFormed.subject else kept[0].cursor
        return max(min(trained, kept[0].cursor, snapshots), 1)

    async def close(self) -> None:
        """Let a trimming that is under way end here: the next one completes it."""
        if self._trimming is not None:
            self._trimming.cancel()
            with suppress(asyncio.CancelledError):
                await self._trimming


def _size_of(folder: Path) -> int:
    """Bytes of the files in a folder; those that go meanwhile count for nothing."""
    total = 0
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                total += path.stat().st_size
    return total


def folds_of(instances: Iterable[tuple[str, str]], folding: frozenset[str], readers: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of everybody who keeps snapshots: actors of these kinds, by instance and kind, and readers."""
    return (*(instance for instance, kind in instances if kind in folding), *readers)
