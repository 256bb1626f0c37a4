"""Rows of a JSON Lines file: the file stays on disk, only the offsets of its lines are kept in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.tasks.rows import check_texts

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """Rows of one file in order; empty lines are skipped. 8 bytes of memory per row."""

    def __init__(self, path: Path) -> None:
        """Index the offsets of the lines.

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
            raise SetupError(
                f'{self.path}: the file has no rows; write one object a line: {{"question": "…", "answer": "…"}}'
            )

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, number: int) -> dict[str, Any]:
        """See `DatasetRows`."""
        try:
            with self.path.open("rb") as file:
                if _state(file.fileno()) != self.state:
                    raise SetupError(
                        f"{self.path}: the file was changed while it was in use; restart with the final file"
                    )
                file.seek(self.starts[number])
                row: dict[str, Any] = msgspec.json.decode(file.readline())
        except OSError as error:
            raise SetupError(f"{self.path}: can no longer be read: {error.strerror}; restore the file") from error
        return row

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `DatasetRows`; errors name the line, counted from 1."""
        read = _reader(fields)
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                row = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if not row.isspace():
                    yield read(row) or self._examine_line(row, fields, f"{self.path}:{number}", file.tell() - len(row))

    def _examine_line(self, line: bytes, fields: Sequence[str], place: str, start: int) -> tuple[str, ...]:
        """Returns the texts of a line that the fast reader rejected, or raises its error.

        `start` is its offset in the file.
        """
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise SetupError(f"{self.path}: byte {start + error.start} is not UTF-8; save the file as UTF-8") from error
        try:
            return check_texts(msgspec.json.decode(text), fields, place)
        except msgspec.DecodeError as error:
            raise SetupError(f"{place}: not JSON: {error}") from error


def _state(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def _reader(fields: Sequence[str]) -> Callable[[bytes], tuple[str, ...] | None]:
    """Returns a fast reader of these texts of a line, which returns None for an invalid line."""
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
