"""Restores an actor's fold from its newest snapshot at its start, and takes a snapshot at every checkpoint.

All folds of a run receive the same `CheckpointCommitted`, or that of a served model `SnapshotsDue`, so their snapshots
have the same sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from areal_actors.core.snapshots import Fold, Snapshot, Snapshots, restore
from areal_actors.messages import CheckpointCommitted, SnapshotRefused, SnapshotsDue, SnapshotStored
from areal_actors.runtime.message_ids import message_id
from areal_bus.base import Bus, Delivery, Stamp
from areal_bus.message import Event

OCCASIONS: tuple[type[Event], ...] = (CheckpointCommitted, SnapshotsDue)
"""Events after which snapshots are taken."""
logger = structlog.get_logger(__name__)


class FoldKeeper:
    """Manages the snapshots of one fold; takes none without a store or a `state_type`."""

    def __init__(self, fold: Fold, bus: Bus, store: Snapshots | None, name: str) -> None:
        self._fold, self._bus, self._name = fold, bus, name
        self._store = store if fold.state_type is not None else None
        self.after = 0
        """Sequence of the last event in the restored snapshot; 0 if the fold begins with the first event."""

    async def restore(self, now: float) -> None:
        """Restore the fold from its newest usable snapshot.

        Raises:
            EventsTrimmed: no snapshot is usable, and the first events of the log were trimmed.
        """
        if self._store is None:
            return
        restored = await restore(self._bus, self._store, self._name, self._fold)
        self.after = restored.after
        for reason in restored.refused:
            logger.warning("a snapshot cannot be used", fold=self._name, reason=reason, begins_after=restored.after)
            refused = SnapshotRefused(fold=self._name, reason=reason, restored=restored.after)
            await self._bus.publish(refused, self._stamp(now, "refused", now, reason))

    def subscribed_kinds(self, kinds: Sequence[type[Event]]) -> Sequence[type[Event]]:
        """Returns the events to subscribe to: those of the fold, and those after which snapshots are taken."""
        return kinds if self._store is None else list(dict.fromkeys([*kinds, *OCCASIONS]))

    def on_folded(self, delivery: Delivery, tasks: asyncio.TaskGroup | None, now: float) -> None:
        """Take a snapshot if it is due after the event just folded; it is written in a task of `tasks`."""
        if self._store is None or tasks is None or not isinstance(delivery.message, OCCASIONS):
            return
        taken = Snapshot.of(self._name, self._fold, delivery.envelope.sequence, delivery.envelope.id)
        tasks.create_task(self._keep(taken, self._store, now))

    async def _keep(self, snapshot: Snapshot, store: Snapshots, now: float) -> None:
        """Write a snapshot, and publish `SnapshotStored` when it is on disk."""
        try:
            await asyncio.to_thread(store.write, snapshot)
        except OSError as error:
            logger.warning(
                "a snapshot was not written; the next restart folds more of the log", fold=self._name, error=str(error)
            )
            return
        stored = SnapshotStored(fold=self._name, after=snapshot.sequence, size=len(snapshot.state))
        await self._bus.publish(stored, self._stamp(now, "stored", snapshot.sequence))

    def _stamp(self, now: float, *what: object) -> Stamp:
        return Stamp(id=message_id("snapshot", self._name, *what), sender=self._name, time=now)
