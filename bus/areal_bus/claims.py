"""Claim check: a body too large for the wire is in a file that the message names.

The file is in a folder, or in a store of the run's host.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from areal_bus.base import Envelope
from areal_bus.errors import ClaimLost, LogUnavailable

INLINE_LIMIT = 256 * 1024
"""Largest body, in bytes, that is sent within its message."""


_NAME = re.compile(r"([a-z0-9_.]+)-[0-9a-f]{32}(?:-([0-9a-f]{32}))?\.msgpack")
"""Subject, id of the message, and digest of the body, which files of earlier versions do not have."""


def blob_name(subject: str, message_id: str, body: bytes) -> str:
    """Returns the name of a body's file.

    Publishing the message again leaves one file, and another body never takes its place.
    """
    return f"{subject}-{_digest(message_id.encode())}-{_digest(body)}.msgpack"


def subject_of(name: str) -> str:
    """Returns the subject of the message to which a body belongs; empty if this is not a body's name."""
    return match[1] if (match := _NAME.fullmatch(name)) else ""


def is_name_of(name: str, body: bytes) -> bool:
    """True if a name has the digest of this body."""
    return (match := _NAME.fullmatch(name)) is not None and match[2] == _digest(body)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class BlobStore(Protocol):
    """Bodies by name, for a process that does not share the run's blobs folder.

    Its methods block, and raise OSError.
    """

    def write(self, name: str, body: bytes) -> None:
        """Store a body."""
        ...

    def read(self, name: str) -> bytes:
        """Returns a body."""
        ...

    def remove(self, name: str) -> None:
        """Remove a body, which may be missing."""
        ...


Blobs = Path | BlobStore
"""The run's blobs folder, or a store that reaches it."""


class BlobFolder:
    """The run's blobs folder as a store."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, name: str, body: bytes) -> None:
        """Write a file, which appears whole."""
        unfinished = self._path / f".{name}.{os.getpid()}"
        self._path.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(body)
        unfinished.replace(self._path / name)

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        return (self._path / name).read_bytes()

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._path / name).unlink(missing_ok=True)


def check_in(envelope: Envelope, blobs: Blobs) -> Envelope:
    """Write the body to a file of the blobs folder, which all receivers must be able to read.

    The write blocks the event loop: the next message of this sender must not overtake it.

    Raises:
        LogUnavailable: the file cannot be written.
    """
    name = blob_name(envelope.subject, envelope.id, envelope.body)
    try:
        _store(blobs).write(name, envelope.body)
    except OSError as error:
        size = f"{envelope.subject}: its body of {len(envelope.body)} bytes"
        raise LogUnavailable(f"{size} cannot be written to {_place(blobs, name)}: {error}") from error
    return msgspec.structs.replace(envelope, body=b"", claim=name)


def check_out(envelope: Envelope, blobs: Blobs | None, *, keep: bool = True) -> Envelope:
    """Returns the envelope with its body loaded; `keep=False` removes the file, if this is the only receiver.

    Only the file's name is used, within `blobs`: logs of earlier versions have whole paths, and run folders can be
    moved.

    Raises:
        ClaimLost: the file is gone or cannot be read.
    """
    if not envelope.claim:
        return envelope
    if blobs is None:
        raise ClaimLost(
            f"{envelope.subject} from {envelope.sender} ({envelope.id}): its body is in the file {envelope.claim}; "
            "pass the run's blobs folder when connecting to read it"
        )
    name = Path(envelope.claim).name
    try:
        body = _store(blobs).read(name)
        if not keep:
            _store(blobs).remove(name)
    except OSError as error:
        raise ClaimLost(
            f"{envelope.subject} from {envelope.sender} ({envelope.id}): its body in {_place(blobs, name)} cannot be"
            f" read: {error}; all processes of a run need the same blobs folder"
        ) from error
    return msgspec.structs.replace(envelope, body=body, claim="")


def remove_bodies(claims: Iterable[str], folder: Path) -> None:
    """Remove the files of bodies of trimmed events; only files in this folder are touched."""
    for claim in claims:
        (folder / Path(claim).name).unlink(missing_ok=True)


def _store(blobs: Blobs) -> BlobStore:
    return BlobFolder(blobs) if isinstance(blobs, Path) else blobs


def _place(blobs: Blobs, name: str) -> str:
    """Returns where a body lies, for errors."""
    return str(blobs.absolute() / name) if isinstance(blobs, Path) else f"{name} of {blobs}"
