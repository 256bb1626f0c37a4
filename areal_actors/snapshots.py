"""Snapshots of folds: what a fold over the log had come to after an event, so that it need not begin with the first again.

    <run folder>/snapshots/<fold>-<sequence>.msgpack

A file is written whole, synced and renamed. It names its fold, the event after which it was taken and the version of the state's
format, and carries a checksum. The newest that is sound, of this version and of this very log is restored; otherwise the one before
it, or the fold begins with the log's first event, where that still exists.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from areal_actors.durable_files import atomic_write
from bus.base import Bus
from bus.errors import EventsTrimmed
from bus.message import FrozenMeta

FORMAT = 1
KEPT = 2
"""Snapshots of a fold that stay: the newest, and one to fall back to."""


class Fold(Protocol):
    """State that follows from the events of a log, in order, and from nothing else."""

    state_type: ClassVar[Any]
    """What `snapshot` returns: a type that msgspec encodes; None for a fold that keeps no snapshots."""
    state_version: ClassVar[int]
    """Counts the changes of the state's format after which older snapshots cannot be restored."""

    def snapshot(self) -> Any:
        """The state, to be encoded before the next event is folded."""
        ...

    def restore(self, state: Any) -> None:
        """Begin with this state instead of none."""
        ...


class Snapshot(msgspec.Struct, metaclass=FrozenMeta):
    """What a file holds."""

    format: int
    fold: str
    version: int
    sequence: int
    """Of the last event in the state."""
    event: str
    """Id of that event: a snapshot belongs to the log that has it there."""
    checksum: int
    """CRC-32 of `state`."""
    state: bytes

    @classmethod
    def of(cls, name: str, fold: Fold, sequence: int, event: str) -> Snapshot:
        """The state of a fold after this event."""
        state = msgspec.msgpack.encode(fold.snapshot())
        return cls(
            format=FORMAT, fold=name, version=fold.state_version, sequence=sequence, event=event, checksum=zlib.crc32(state), state=state
        )


class Restored(msgspec.Struct, metaclass=FrozenMeta):
    """Where a fold begins."""

    after: int
    """Sequence of the last event that it knows; 0 if it begins with the first."""
    refused: tuple[str, ...] = ()
    """Snapshots that could not be used, each with the reason."""


class UnusableSnapshot(Exception):
    """Raised when a snapshot is damaged, or is of another fold, version or log."""


class SnapshotStore:
    """The snapshots of a run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, and no more than `KEPT` of its fold; blocks until it is on disk.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self._path(snapshot.fold, snapshot.sequence), msgspec.msgpack.encode(snapshot))
        for old in self.sequences(snapshot.fold)[:-KEPT]:
            self._path(snapshot.fold, old).unlink(missing_ok=True)

    def sequences(self, fold: str) -> list[int]:
        """After which events there are snapshots of this fold, oldest first."""
        names = (path.stem.rpartition("-") for path in self.folder.glob(f"{fold}-*.msgpack"))
        return sorted(int(sequence) for name, _, sequence in names if name == fold and sequence.isdecimal())

    def folds(self) -> set[str]:
        """The folds that have snapshots here."""
        return {name for path in self.folder.glob("*.msgpack") if (name := path.stem.rpartition("-")[0])}

    def remove_after(self, fold: str, sequence: int) -> None:
        """Remove the snapshots of a fold that were taken after a later event than this."""
        for taken in self.sequences(fold):
            if taken > sequence:
                self._path(fold, taken).unlink(missing_ok=True)

    def read(self, fold: str, sequence: int) -> Snapshot:
        """The snapshot of a fold after this event.

        Raises:
            UnusableSnapshot: it is damaged, or another file lies there.
        """
        path = self._path(fold, sequence)
        try:
            found = msgspec.msgpack.decode(path.read_bytes(), type=Snapshot)
        except (OSError, msgspec.MsgspecError) as error:
            raise UnusableSnapshot(f"{path} cannot be read: {error}") from error
        if zlib.crc32(found.state) != found.checksum:
            raise UnusableSnapshot(f"{path} is damaged: its checksum does not hold")
        if (found.format, found.fold, found.sequence) != (FORMAT, fold, sequence):
            raise UnusableSnapshot(f"{path} is a snapshot of {found.fold} after event {found.sequence} in format {found.format}")
        return found

    def _path(self, fold: str, sequence: int) -> Path:
        return self.folder / f"{fold}-{sequence}.msgpack"


async def restore(bus: Bus, store: SnapshotStore, name: str, fold: Fold) -> Restored:
    """Let a fold begin with the newest snapshot that can be used, or with the first event.

    Raises:
        EventsTrimmed: none can be used, and the log begins later; the message says why for each.
    """
    span = await bus.span()
    refused: list[str] = []
    for sequence in reversed(store.sequences(name)):
        try:
            if not span.first - 1 <= sequence <= span.last:
                raise UnusableSnapshot(f"{name} after event {sequence} is not of this log, which has events {span.first} to {span.last}")
            found = store.read(name, sequence)
            if sequence >= span.first and (await bus.read([sequence]))[0].id != found.event:
                raise UnusableSnapshot(f"{name} after event {sequence} is not of this log: it was taken after event {found.event}")
            fold.restore(_decoded(found, fold))
        except UnusableSnapshot as error:
            refused.append(str(error))
        else:
            return Restored(after=sequence, refused=tuple(refused))
    if span.first > 1:
        raise EventsTrimmed(
            f"{name} cannot be restored: the log begins at event {span.first}, since earlier ones were trimmed, and no snapshot can be "
            f"used ({'; '.join(refused) or f'none is in {store.folder}'}); put the run folder's snapshots back from a copy, "
            "or start another run from the last checkpoint"
        )
    return Restored(after=0, refused=tuple(refused))


def _decoded(found: Snapshot, fold: Fold) -> Any:
    if found.version != fold.state_version:
        raise UnusableSnapshot(
            f"{found.fold} after event {found.sequence} has version {found.version} of its format, and this program reads version "
            f"{fold.state_version}"
        )
    try:
        return msgspec.msgpack.decode(found.state, type=fold.state_type)
    except msgspec.MsgspecError as error:
        raise UnusableSnapshot(f"{found.fold} after event {found.sequence} does not fit this program: {error}") from error


def oldest(store: SnapshotStore, folds: Iterable[str]) -> int:
    """Sequence of the oldest snapshot that one of these folds could fall back to; 0 while one of them has less than `KEPT`."""
    kept = [store.sequences(fold) for fold in folds]
    return min((sequences[0] if len(sequences) >= KEPT else 0 for sequences in kept), default=0)
