"""Files that survive a crash, a full disk or a power failure: atomic replacement, and logs of one JSON object per line.

A small file is written under a temporary name, synced and renamed: readers see the old content or the new. A line log
is appended to; after a crash its last line may be truncated, which the next append and every reader handle.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_bus.descriptors import REMEDY as DESCRIPTORS_REMEDY
from areal_bus.descriptors import descriptor_limit, is_out_of_descriptors
from areal_bus.durability import sync
from areal_bus.message import FrozenMeta

FILE_MODE = 0o644
PRIVATE_MODE = 0o600
NEWLINE = b"\n"
FULL_BYTES = 16 << 20
"""Free space below which a failed write counts as a full disk, since libraries do not always report the cause."""
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
DISK_FULL_WORDS = ("No space left", "os error 28", "Disk quota exceeded", "os error 122")
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
READ_ONLY_WORDS = (
    "Read-only file system",
    "os error 30",
    "Permission denied",
    "os error 13",
    "Operation not permitted",
    "os error 1)",
)
MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30


def atomic_write(path: Path, content: bytes, *, mode: int = FILE_MODE) -> None:
    """Replace a file's content atomically and sync it to disk; the umask applies to `mode`.

    Raises:
        OSError: it cannot be written; the old content stays, and the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def is_disk_full(error: Exception, folder: Path) -> bool:
    """True if a write to a folder failed for lack of space."""
    if is_out_of_descriptors(error):
        return False
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return True
    return any(words in str(error) for words in DISK_FULL_WORDS) or shutil.disk_usage(folder).free < FULL_BYTES


def disk_full(what: str, folder: Path, then: str = "") -> SetupError:
    """Returns the error of a full disk, with figures and a remedy.

    `then` is its last step, by default to resume the run of the folder.
    """
    usage = shutil.disk_usage(folder)
    return SetupError(
        f"{what}: the disk is full ({usage.free // MEBIBYTE:,} of {usage.total // MEBIBYTE:,} MiB free); "
        f"free space, then {then or f'`{COMMAND} resume {folder.name}`'}"
    )


def write_refusal(folder: Path) -> str:
    """Returns why no file can be created in a folder, by creating one; empty if it can be."""
    probe = folder / f".{os.getpid()}.{threading.get_ident()}.probe"
    try:
        probe.touch(mode=PRIVATE_MODE)
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def storage_error(what: str, error: Exception, folder: Path, root: Path, then: str = "") -> SetupError | None:
    """Returns the error of a place that takes no more files, with a remedy; None if a write failed for another reason.

    Args:
        what: what failed.
        error: the error of the write.
        folder: the folder that was written to.
        root: the run's folder.
        then: last step of the remedy; by default to resume the run.
    """
    hint = (
        error.errno in READ_ONLY
        if isinstance(error, OSError)
        else any(words in str(error) for words in READ_ONLY_WORDS)
    )
    if hint and (refusal := write_refusal(folder)):
        return read_only(what, folder, refusal, then or f"`{COMMAND} resume {root.name}`")
    return disk_full(what, root, then) if is_disk_full(error, root) else None


def read_only(what: str, folder: Path, refusal: str, then: str) -> SetupError:
    """Returns the error of a folder in which nothing can be written, with a remedy."""
    return SetupError(
        f"{what}: {folder} cannot be written ({refusal}); make it writable (its owner, its mode, the mount of its"
        f" disk), then {then}"
    )


def explain_os_error(error: Exception) -> str:
    """Returns the text of an error, with the remedy if the process or the machine has no file descriptors left."""
    text = f"{type(error).__name__}: {error}"
    return f"{text} (limit {descriptor_limit():,}): {DESCRIPTORS_REMEDY}" if is_out_of_descriptors(error) else text


def fsync_path(path: Path) -> None:
    """Sync a file or the entries of a folder to disk."""
    sync(path)


def append_line(path: Path, line: str) -> None:
    """Append one line, on a new line if a crash has truncated the last one.

    Raises:
        SetupError: the disk is full, or the folder cannot be written; the file is unchanged.
        OSError: it cannot be written for another reason.
    """
    try:
        _append(path, line)
    except OSError as error:
        if refused := storage_error(f"{path} cannot be written", error, path.parent, path.parent):
            raise refused from error
        raise


def _append(path: Path, line: str) -> None:
    with path.open("ab", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        content = line.encode() + NEWLINE
        if length and not _ends_with_newline(path):
            content = NEWLINE + content
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(length)
            raise


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == NEWLINE


class Lines(msgspec.Struct, metaclass=FrozenMeta):
    """Content of a file of JSON lines."""

    rows: tuple[dict[str, Any], ...]
    damaged: tuple[int, ...] = ()
    """Numbers of the lines that are not JSON objects, counted from 1: truncated by a crash, or overwritten."""

    def complaint(self, path: Path) -> str:
        """Returns a sentence about the damaged lines; empty if there are none."""
        if not self.damaged:
            return ""
        numbers = ", ".join(map(str, self.damaged[:3])) + ("…" if len(self.damaged) > 3 else "")
        lines = f"line {numbers} is" if len(self.damaged) == 1 else f"{len(self.damaged)} lines ({numbers}) are"
        return f"{path.name}: {lines} truncated or damaged and ignored; the other {len(self.rows)} are used"


def read_lines(path: Path) -> Lines:
    """Read a file of JSON lines; returns no rows if it does not exist."""
    rows: list[dict[str, Any]] = []
    damaged: list[int] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif line.strip():
            damaged.append(number)
    return Lines(rows=tuple(rows), damaged=tuple(damaged))


def _lines(path: Path) -> Iterator[bytes]:
    if not path.exists():
        return
    with path.open("rb") as file:
        yield from file


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file; empty if there is no such file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content
