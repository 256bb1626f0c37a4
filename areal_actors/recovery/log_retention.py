"""Folds of the run over its own log, with snapshots at checkpoints, and trimming of the log.

A log larger than `log.max_mb` loses its beginning, up to the first event that one of these needs:

- the oldest of the newest `checkpoint.keep_last` checkpoints: the batches after it, and the trajectories of these
  batches and of groups that were not yet trained then (`BatchFormed.oldest_sequence`);
- the older of the two newest snapshots of every fold: actors, and the readers here.

The best checkpoint needs no log: training from it is another run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import structlog

from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.snapshots import Fold, Snapshot, SnapshotStore, oldest, restore
from areal_actors.messages import BatchFormed, CheckpointCommitted, LogTrimmed, SnapshotsDue, SnapshotStored
from areal_actors.recipe.run_settings import LogSettings
from areal_actors.training.checkpoint_store import folder_bytes
from areal_bus.base import Bus, Envelope
from areal_bus.errors import BusError
from areal_bus.message import Event, Message

MAX_KEPT_SHARE = 0.9
"""Trimming that would keep more than this share of the log is postponed to the next checkpoint."""

OCCASIONS = frozenset({CheckpointCommitted.subject, SnapshotsDue.subject})
"""Subjects of the events after which snapshots are taken."""
FOLDING = frozenset(
    {
        "staleness_gate",
        "task_source",
        "batcher",
        "example_source",
        "evaluator",
        "checkpointer",
        "metrics",
        "episode_log",
        "session_manager",
        "trainer",
    }
)
"""Actors whose state is a fold over the log, with snapshots; the log is trimmed only up to these."""

Publish = Callable[[Event], Awaitable[None]]
logger = structlog.get_logger(__name__)


class Reader(Fold, Protocol):
    """A fold over the whole log outside of any actor."""

    def receive(self, envelope: Envelope, message: Message | None = None) -> object:
        """Fold the next event; `message`: what the envelope has, if it is decoded."""
        ...


class LogReaders:
    """The readers of a run, by the names of their snapshots; each receives every event once, in order."""

    def __init__(self, bus: Bus, store: SnapshotStore, readers: Mapping[str, Reader], publish: Publish) -> None:
        self._bus, self._store, self._readers, self._publish = bus, store, readers, publish
        self._writing: set[asyncio.Task[None]] = set()

    async def catch_up(self) -> int:
        """Bring every reader to the end of the log, starting at its newest snapshot; returns the log's last sequence.

        Raises:
            EventsTrimmed: a reader has no usable snapshot, and the first events of the log were trimmed.
        """
        last = 0
        for name, reader in self._readers.items():
            restored = await restore(self._bus, self._store, name, reader)
            last = restored.after
            for reason in restored.refused:
                logger.warning("a snapshot cannot be used", fold=name, reason=reason, begins_after=restored.after)
            async for envelope in self._bus.log(after=restored.after):
                reader.receive(envelope)
                last = envelope.sequence
        return last

    def receive(self, envelope: Envelope, message: Message | None = None) -> None:
        """Pass the next event to every reader; where snapshots are due, write them in the background.

        `message`: what the envelope has, if it is decoded.
        """
        for name, reader in self._readers.items():
            reader.receive(envelope, message)
            if envelope.subject in OCCASIONS:
                taken = Snapshot.of(name, reader, envelope.sequence, envelope.id)
                task = asyncio.create_task(self._keep(taken))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)

    async def _keep(self, snapshot: Snapshot) -> None:
        try:
            await asyncio.to_thread(self._store.write, snapshot)
            await self._publish(SnapshotStored(fold=snapshot.fold, after=snapshot.sequence, size=len(snapshot.state)))
        except (OSError, BusError) as error:
            logger.warning(
                "a snapshot was not written; the next start reads more of the log", fold=snapshot.fold, error=str(error)
            )

    async def close(self) -> None:
        """Wait for the snapshots that are being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)


class LogRetention:
    """Trims the unneeded beginning of a run's log when the log is too large; nothing else trims it."""

    def __init__(
        self,
        settings: LogSettings,
        bus: Bus,
        store: SnapshotStore,
        *,
        folds: Iterable[str],
        keep_last: int,
        blobs: Path,
        publish: Publish,
    ) -> None:
        """`folds`: names of the folds whose snapshots must cover the trimmed part.

        The last `keep_last` checkpoints stay usable.
        """
        self.settings, self.bus, self.store, self.blobs, self.publish = settings, bus, store, blobs, publish
        self.folds = tuple(folds)
        self.keep_last = keep_last
        self._trimming: asyncio.Task[None] | None = None

    def receive(self, event: SnapshotStored, checkpoints: list[CheckpointCommitted]) -> None:
        """Note a stored snapshot; after the last of a checkpoint, trim the log if it is too large."""
        if self.settings.keep == "all" or (self._trimming is not None and not self._trimming.done()):
            return
        if all(self.store.sequences(fold)[-1:] == [event.after] for fold in self.folds):
            self._trimming = asyncio.create_task(self._trim_if_too_large(checkpoints[-self.keep_last :]))

    async def _trim_if_too_large(self, kept: list[CheckpointCommitted]) -> None:
        try:
            span = await self.bus.span()
            size = span.bytes + await asyncio.to_thread(folder_bytes, self.blobs)
            if size <= self.settings.max_mb * MEBIBYTE:
                return
            first = await self.first_needed(kept)
            if first - span.first > (1 - MAX_KEPT_SHARE) * (span.last - span.first):
                await self.publish(LogTrimmed(first=first, step=kept[0].step, removed=first - span.first))
                started = time.monotonic()
                await self.bus.trim(first)
                logger.info(
                    "trimmed the log",
                    first=first,
                    removed=first - span.first,
                    seconds=round(time.monotonic() - started, 3),
                )
        except BusError as error:
            logger.warning("the log was not trimmed; retried at the next checkpoint", error=str(error))

    async def first_needed(self, kept: list[CheckpointCommitted]) -> int:
        """Returns the sequence of the first event that a kept checkpoint or snapshot needs; 1 if all may be needed."""
        if len(kept) < self.keep_last or not kept[0].cursor or not (snapshots := oldest(self.store, self.folds)):
            return 1
        (batch,) = await self.bus.read([kept[0].cursor])
        trained = batch.open(BatchFormed).oldest_sequence if batch.subject == BatchFormed.subject else kept[0].cursor
        return max(min(trained, kept[0].cursor, snapshots), 1)

    async def close(self) -> None:
        """Cancel trimming in progress: the next trimming completes it."""
        if self._trimming is not None:
            self._trimming.cancel()
            with suppress(asyncio.CancelledError):
                await self._trimming


def folds_of(
    instances: Iterable[tuple[str, str]], folding: frozenset[str], readers: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the names of all folds with snapshots: actors of these kinds, by instance and kind, and readers."""
    return (*(instance for instance, kind in instances if kind in folding), *readers)
