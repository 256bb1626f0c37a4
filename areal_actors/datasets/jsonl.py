"""Rows from a file with one JSON object a line; the file stays on disk, and only where its lines begin is kept in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.datasets.rows import checked
from areal_actors.errors import SetupError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """The rows of one file in order; empty lines are passed over. 8 bytes of memory a row."""

    def __init__(self, path: Path) -> None:
        """Find where the lines begin.

        Raises:
            SetupError: the file cannot be read, or has no rows.
        """
        self.path = path.expanduser()
        self.starts = array("Q")
        try:
            with self.path.open("rb") as file:
                self.state = _state(file.fileno())
                start = len(_BYTE_ORDER_MARK) if file.read(len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK else 0
                file.seek(start)
                for line in file:
                    if not line.isspace():
                        self.starts.append(start)
                    start += len(line)
        except OSError as error:
            raise SetupError(
                f"{self.path}: cannot be read: {error.strerror}; name an existing .jsonl file (looked in {Path.cwd()})"
            ) from error
        if not self.starts:
            raise SetupError(f'{self.path}: the file has no rows; write one object a line: {{"question": "…", "answer": "…"}}')

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, number: int) -> dict[str, Any]:
        """See `Rows`."""
        try:
            with self.path.open("rb") as file:
                if _state(file.fileno()) != self.state:
                    raise SetupError(f"{self.path}: the file was changed while it was in use; start again with it as it is to be")
                file.seek(self.starts[number])
                row: dict[str, Any] = msgspec.json.decode(file.readline())
        except OSError as error:
            raise SetupError(f"{self.path}: cannot be read any more: {error.strerror}; put the file back") from error
        return row

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `Rows`; a row is named by its line, counted from 1."""
        read = _reader(fields)
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                row = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if not row.isspace():
                    yield read(row) or self._examined(row, fields, f"{self.path}:{number}", file.tell() - len(row))

    def _examined(self, line: bytes, fields: Sequence[str], place: str, start: int) -> tuple[str, ...]:
        """What the fast reader could not read, or what is wrong with it; `start` is where in the file it begins."""
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise SetupError(f"{self.path}: byte {start + error.start} is not UTF-8; save the file as UTF-8") from error
        try:
            return checked(msgspec.json.decode(text), fields, place)
        except msgspec.DecodeError as error:
            raise SetupError(f"{place}: not JSON: {error}") from error


def _state(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


def _reader(fields: Sequence[str]) -> Callable[[bytes], tuple[str, ...] | None]:
    """Reads these texts out of a line, and passes over the rest of it; None for a line that is wrong in any way."""
    names = {f"field{index}": field for index, field in enumerate(fields)}
    shape = msgspec.defstruct("Shape", [(name, str) for name in names], rename=names.get)
    decode = msgspec.json.Decoder(shape).decode

    def read(line: bytes) -> tuple[str, ...] | None:
        try:
            str(line, "utf-8")
            texts: tuple[str, ...] = msgspec.structs.astuple(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return None if any(not text or text.isspace() for text in texts) else texts

    return read
