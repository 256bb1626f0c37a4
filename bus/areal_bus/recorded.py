"""Recordings: a run's log, or the messages of one actor (a tape), in one portable file.

It is compressed if its name ends in `.xz` or `.gz`. A file is a sequence of frames, each a length (4 bytes, big-endian)
and that many bytes of msgpack. The first frame is a `Header`; the others are envelopes in a log and entries in a tape.
"""

from __future__ import annotations

import bisect
import gzip
import lzma
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Literal, Self, TypeVar, cast

import msgspec

from areal_bus.base import Bus, Envelope
from areal_bus.errors import LogDamaged, MessageTooLarge, RecordingDamaged
from areal_bus.message import FrozenMeta

FORMAT_VERSION: Final = 3
_LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 256 << 20
"""Largest frame: a compressed file of some kilobytes may hold one that takes all memory."""
_DAMAGED_COMPRESSION: Final = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)

T = TypeVar("T")
EntryKind = Literal["received", "emitted", "asked", "answered", "failed"]
RECEIVED: Final = "received"
EMITTED: Final = "emitted"


class Header(msgspec.Struct, metaclass=FrozenMeta):
    """The first frame of a recording."""

    holds: Literal["log", "tape"]
    run: str
    format_version: int = FORMAT_VERSION


class TapeEntry(msgspec.Struct, metaclass=FrozenMeta):
    """One message or failure of an actor."""

    kind: EntryKind
    """Received or emitted message, request sent, reply received, or failure of a handler or request."""
    cause: str
    """Id of the received message whose handler this belongs to."""
    time: float
    """Seconds since the epoch, by the actor's clock."""
    envelope: Envelope | None = None
    """None for `failed`."""
    error: str = ""
    """Type of the error, for `failed`."""
    text: str = ""
    """Message of the error, for `failed`."""


class LogWriter:
    """Writes a log to a file."""

    def __init__(self, path: Path, run: str, *, suffix: str = "") -> None:
        """`suffix` is that of the final name of the file, which may be compressed."""
        self._file = _open(path, "wb", suffix or path.suffix)
        _write(self._file, Header(holds="log", run=run))

    def write(self, envelope: Envelope) -> None:
        """Add an event."""
        _write(self._file, envelope)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class LogCopy:
    """A copy of a log in a file, which is written and read at the same time.

    Another process may read it with `read_log`.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self._file = path.open("w+b")
        self._end = _write(self._file, Header(holds="log", run=run))
        self._at_end = True
        """A seek to where the file is already would write its buffer."""
        self._sequences, self._places = array("Q"), array("Q")
        self._decoder = msgspec.msgpack.Decoder(Envelope)

    def write(self, envelope: Envelope) -> None:
        """Add an event."""
        if not self._at_end:
            self._file.seek(self._end)
            self._at_end = True
        self._sequences.append(envelope.sequence)
        self._places.append(self._end)
        self._end += _write(self._file, envelope)

    def flush(self) -> None:
        """Make all events readable for other processes."""
        self._file.flush()

    def read(self, sequence: int) -> Envelope | None:
        """Returns the event at a position in the log; None if it is not in the copy."""
        number = bisect.bisect_left(self._sequences, sequence)
        if number == len(self._sequences) or self._sequences[number] != sequence:
            return None
        self._at_end = False
        self._file.seek(self._places[number])
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "big")
        return self._decoder.decode(self._file.read(length))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


async def export_log(bus: Bus, path: Path) -> int:
    """Write the run's whole log to one file, which appears under its name once complete; returns the number of events.

    The file contains all bodies, including those in the blobs folder.

    Raises:
        LogDamaged: the log has a gap; the file has all events before it.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    count, damage = 0, ""
    with LogWriter(unfinished, bus.run, suffix=path.suffix) as file:
        try:
            async for envelope in bus.log():
                file.write(envelope)
                count += 1
        except LogDamaged as error:
            damage = str(error)
    unfinished.replace(path)
    if damage:
        raise LogDamaged(f"{damage}; the {count} events before it were written to {path}")
    return count


def read_log(path: Path) -> Iterator[Envelope]:
    """Yield the envelopes of an exported log, in order.

    Raises:
        RecordingDamaged: the file is no log, or, after all complete entries, ends in the middle of one.
    """
    return _read(path, "log", Envelope)


def read_tape(path: Path) -> Iterator[TapeEntry]:
    """Yield the entries of a tape, in order.

    Raises:
        RecordingDamaged: the file is no tape, or, after all complete entries, ends in the middle of one, as that of a
            killed process may.
    """
    return _read(path, "tape", TapeEntry)


def read_header(path: Path) -> Header:
    """Returns the header of a recording.

    Raises:
        RecordingDamaged: it is no recording.
    """
    with _open(path, "rb", path.suffix) as file:
        return _read_header(file, path)


class Tape:
    """Recorder of one actor's messages, requests and replies."""

    def __init__(self, file: BinaryIO, run: str) -> None:
        self._file = file
        _write(file, Header(holds="tape", run=run))

    @classmethod
    def record(cls, path: Path, run: str = "") -> Self:
        """Begin a tape in a new file; writes are unbuffered, so that a crash loses no entry."""
        return cls(path.open("wb", buffering=0), run)

    def write(self, entry: TapeEntry) -> None:
        """Add an entry."""
        _write(self._file, entry)

    def note(
        self, kind: EntryKind, cause: str, time: float, envelope: Envelope | None, error: Exception | None
    ) -> None:
        """Add an entry of an event in the handling of the message `cause`, with the error that ended a request."""
        kinds = {"error": type(error).__name__, "text": str(error)} if error else {}
        self.write(TapeEntry(kind=kind, cause=cause, time=time, envelope=envelope, **kinds))

    def close(self) -> None:
        """End the tape."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open(path: Path, mode: Literal["rb", "wb"], suffix: str) -> BinaryIO:
    """Open a file that is compressed as its suffix names."""
    if suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, mode))
    return cast(BinaryIO, gzip.open(path, mode)) if suffix == ".gz" else path.open(mode)


def _write(file: BinaryIO, frame: Header | Envelope | TapeEntry) -> int:
    encoded = msgspec.msgpack.encode(frame)
    if len(encoded) > MAX_FRAME_BYTES:
        raise MessageTooLarge(
            f"an entry of {len(encoded):,} bytes exceeds the largest that can be read again, {MAX_FRAME_BYTES:,}"
        )
    return file.write(len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded)


def _read(path: Path, holds: Literal["log", "tape"], kind: type[T]) -> Iterator[T]:
    decoder = msgspec.msgpack.Decoder(kind)
    with _open(path, "rb", path.suffix) as file:
        header = _read_header(file, path)
        if header.holds != holds:
            raise RecordingDamaged(f"{path} holds a {header.holds}, not a {holds}")
        for number, frame in enumerate(_frames(file, path), start=1):
            try:
                yield decoder.decode(frame)
            except msgspec.MsgspecError as error:
                raise RecordingDamaged(f"{path}: entry {number} is damaged: {error}") from error


def _read_header(file: BinaryIO, path: Path) -> Header:
    no_recording = f"{path} is not a recording (a log or a tape)"
    try:
        header = msgspec.msgpack.decode(next(_frames(file, path)), type=Header)
    except (StopIteration, RecordingDamaged, msgspec.MsgspecError) as error:
        raise RecordingDamaged(no_recording) from error
    if header.format_version > FORMAT_VERSION:
        raise RecordingDamaged(
            f"{path} has format version {header.format_version}, but this program supports versions up to"
            f" {FORMAT_VERSION}; upgrade it"
        )
    return header


def _frames(file: BinaryIO, path: Path) -> Iterator[bytes]:
    count = 0
    while length := _read_bytes(file, _LENGTH_BYTES):
        wanted = int.from_bytes(length, "big")
        if wanted > MAX_FRAME_BYTES:
            bound = f"{wanted:,} bytes, the largest that is read has {MAX_FRAME_BYTES:,}"
            raise RecordingDamaged(
                f"{path}: entry {count + 1} announces {bound}: the file is damaged, or none that this program wrote"
            )
        frame = _read_bytes(file, wanted) if len(length) == _LENGTH_BYTES else b""
        if len(length) < _LENGTH_BYTES or len(frame) < wanted:
            raise RecordingDamaged(f"{path} ends in the middle of an entry; the {count} entries before it are complete")
        count += 1
        yield frame


def _read_bytes(file: BinaryIO, count: int) -> bytes:
    """Returns the next bytes; fewer at the end of the file, or where a compressed one is cut off or damaged."""
    try:
        return file.read(count)
    except _DAMAGED_COMPRESSION:
        return b""
