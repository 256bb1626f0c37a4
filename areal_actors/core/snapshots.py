"""Snapshots of folds: the state of a fold over the log after an event, so that a restart need not fold the whole log.

    <run folder>/snapshots/<fold>-<sequence>.msgpack

A file is written atomically. It contains the fold's name, the sequence and id of the last event in the state, the
version of the state's format, and a checksum. The newest intact snapshot of this version and log is restored; otherwise
the one before it, or the fold begins with the log's first event, if that was not trimmed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from areal_actors.core.durable_files import atomic_write
from areal_bus.base import Bus
from areal_bus.errors import EventsTrimmed
from areal_bus.message import FrozenMeta

FORMAT = 1
KEPT = 2
"""Number of snapshots kept of each fold: the newest, and one to fall back to."""


class Fold(Protocol):
    """State that is a function of the events of a log, in order."""

    state_type: ClassVar[Any]
    """Return type of `snapshot`, which msgspec must encode; None for a fold without snapshots."""
    state_version: ClassVar[int]
    """Version of the state's format; snapshots of other versions cannot be restored."""

    def snapshot(self) -> Any:
        """Returns the state, which is encoded before the next event is folded."""
        ...

    def restore(self, state: Any) -> None:
        """Restore this state."""
        ...


class Snapshot(msgspec.Struct, metaclass=FrozenMeta):
    """Content of a snapshot file."""

    format: int
    fold: str
    version: int
    sequence: int
    """Sequence of the last event in the state."""
    event: str
    """Id of that event, which identifies the log."""
    checksum: int
    """CRC-32 of `state`."""
    state: bytes

    @classmethod
    def of(cls, name: str, fold: Fold, sequence: int, event: str) -> Snapshot:
        """Take a snapshot of a fold after this event."""
        state = msgspec.msgpack.encode(fold.snapshot())
        return cls(
            format=FORMAT,
            fold=name,
            version=fold.state_version,
            sequence=sequence,
            event=event,
            checksum=zlib.crc32(state),
            state=state,
        )


class Restored(msgspec.Struct, metaclass=FrozenMeta):
    """Result of restoring a fold."""

    after: int
    """Sequence of the last event in the restored state; 0 if the fold begins with the first event."""
    refused: tuple[str, ...] = ()
    """Snapshots that could not be used, each with the reason."""


class UnusableSnapshot(Exception):
    """Raised when a snapshot is damaged, or belongs to another fold, version or log."""


class Snapshots(Protocol):
    """Place of the snapshots of folds. All calls block."""

    def write(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; raises OSError if it cannot be kept."""
        ...

    def sequences(self, fold: str) -> list[int]:
        """Returns the sequences of the snapshots of this fold, oldest first."""
        ...

    def read(self, fold: str, sequence: int) -> Snapshot:
        """Returns the snapshot of a fold after this event.

        Raises `UnusableSnapshot` if it is damaged or another one.
        """
        ...


class SnapshotStore:
    """The snapshots of a run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot and remove all but the newest `KEPT` of its fold; blocks until it is on disk.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path(snapshot.fold, snapshot.sequence), msgspec.msgpack.encode(snapshot))
        for old in self.sequences(snapshot.fold)[:-KEPT]:
            self.path(snapshot.fold, old).unlink(missing_ok=True)

    def sequences(self, fold: str) -> list[int]:
        """Returns the sequences of the snapshots of this fold, oldest first."""
        names = (path.stem.rpartition("-") for path in self.folder.glob(f"{fold}-*.msgpack"))
        return sorted(int(sequence) for name, _, sequence in names if name == fold and sequence.isdecimal())

    def folds(self) -> set[str]:
        """Returns the names of the folds with snapshots."""
        return {name for path in self.folder.glob("*.msgpack") if (name := path.stem.rpartition("-")[0])}

    def remove_after(self, fold: str, sequence: int) -> None:
        """Remove the snapshots of a fold with a sequence above this."""
        for taken in self.sequences(fold):
            if taken > sequence:
                self.path(fold, taken).unlink(missing_ok=True)

    def read(self, fold: str, sequence: int) -> Snapshot:
        """Read the snapshot of a fold after this event.

        Raises:
            UnusableSnapshot: it is damaged, or the file contains another snapshot.
        """
        return read_snapshot(self.path(fold, sequence).read_bytes, str(self.path(fold, sequence)), fold, sequence)

    def path(self, fold: str, sequence: int) -> Path:
        """Returns the file of the snapshot of a fold after this event."""
        return self.folder / f"{fold}-{sequence}.msgpack"


def read_snapshot(read: Callable[[], bytes], place: str, fold: str, sequence: int) -> Snapshot:
    """Returns the snapshot of a fold after this event, checked.

    Raises:
        UnusableSnapshot: it cannot be read, is damaged, or is another one.
    """
    try:
        snapshot = msgspec.msgpack.decode(read(), type=Snapshot)
    except (OSError, msgspec.MsgspecError) as error:
        raise UnusableSnapshot(f"{place} cannot be read: {error}") from error
    if zlib.crc32(snapshot.state) != snapshot.checksum:
        raise UnusableSnapshot(f"{place} is damaged: its checksum does not match")
    if (snapshot.format, snapshot.fold, snapshot.sequence) != (FORMAT, fold, sequence):
        raise UnusableSnapshot(
            f"{place} is a snapshot of {snapshot.fold} after event {snapshot.sequence} in format {snapshot.format}"
        )
    return snapshot


async def restore(bus: Bus, store: Snapshots, name: str, fold: Fold) -> Restored:
    """Restore a fold from its newest usable snapshot, or let it begin with the first event.

    Raises:
        EventsTrimmed: no snapshot is usable, and the log begins after event 1; the message has the reason for each
            snapshot.
    """
    span = await bus.span()
    refused: list[str] = []
    for sequence in reversed(store.sequences(name)):
        try:
            if not span.first - 1 <= sequence <= span.last:
                raise UnusableSnapshot(
                    f"{name} after event {sequence} does not belong to this log of events {span.first} to {span.last}"
                )
            snapshot = store.read(name, sequence)
            if sequence >= span.first and (await bus.read([sequence]))[0].id != snapshot.event:
                raise UnusableSnapshot(
                    f"{name} after event {sequence} does not belong to this log: it was taken after event"
                    f" {snapshot.event}"
                )
            fold.restore(_decode_state(snapshot, fold))
        except UnusableSnapshot as error:
            refused.append(str(error))
        else:
            return Restored(after=sequence, refused=tuple(refused))
    if span.first > 1:
        raise EventsTrimmed(
            f"{name} cannot be restored: the log begins at event {span.first}, since earlier ones were trimmed, and no"
            f" snapshot is usable ({'; '.join(refused) or f'{store} has none'}); restore the run folder's snapshots"
            " from a backup, or start another run from the last checkpoint"
        )
    return Restored(after=0, refused=tuple(refused))


def _decode_state(snapshot: Snapshot, fold: Fold) -> Any:
    if snapshot.version != fold.state_version:
        raise UnusableSnapshot(
            f"{snapshot.fold} after event {snapshot.sequence} has version {snapshot.version} of its format, but this"
            f" program requires version {fold.state_version}"
        )
    try:
        return msgspec.msgpack.decode(snapshot.state, type=fold.state_type)
    except msgspec.MsgspecError as error:
        raise UnusableSnapshot(
            f"{snapshot.fold} after event {snapshot.sequence} cannot be decoded by this program: {error}"
        ) from error


def oldest(store: SnapshotStore, folds: Iterable[str]) -> int:
    """Returns the lowest sequence that one of these folds may fall back to.

    0 while one of them has fewer than `KEPT` snapshots.
    """
    kept = [store.sequences(fold) for fold in folds]
    return min((sequences[0] if len(sequences) >= KEPT else 0 for sequences in kept), default=0)
