"""Claim check: a body too large for the wire is in a file that the message names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bus.base import Envelope
from bus.errors import ClaimLost, LogUnavailable

INLINE_LIMIT = 256 * 1024
"""Largest body, in bytes, that is sent within its message."""


def check_in(envelope: Envelope, folder: Path) -> Envelope:
    """Write the body to a file of the folder, which all receivers must be able to read.

    The file is named after the message id, so that publishing it again leaves one file. The write blocks the event loop:
    the next message of this sender must not overtake it.

    Raises:
        LogUnavailable: the file cannot be written.
    """
    name = f"{envelope.subject}-{hashlib.blake2b(envelope.id.encode(), digest_size=16).hexdigest()}.msgpack"
    path = folder.absolute() / name
    unfinished = path.with_name(f".{name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(envelope.body)
        unfinished.replace(path)
    except OSError as error:
        raise LogUnavailable(f"{envelope.subject}: its body of {len(envelope.body)} bytes cannot be written to {path}: {error}") from error
    return msgspec.structs.replace(envelope, body=b"", claim=name)


def check_out(envelope: Envelope, folder: Path | None, *, keep: bool = True) -> Envelope:
    """Returns the envelope with its body loaded; `keep=False` removes the file, if this is the only receiver.

    Only the file's name is used, within `folder`: logs of earlier versions have whole paths, and run folders can be moved.

    Raises:
        ClaimLost: the file is gone or cannot be read.
    """
    if not envelope.claim:
        return envelope
    if folder is None:
        raise ClaimLost(
            f"{envelope.subject} from {envelope.sender} ({envelope.id}): its body is in the file {envelope.claim}; "
            "pass the run's blobs folder when connecting to read it"
        )
    path = folder / Path(envelope.claim).name
    try:
        body = path.read_bytes()
        if not keep:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ClaimLost(
            f"{envelope.subject} from {envelope.sender} ({envelope.id}): its body in {path} cannot be read: {error}; "
            "all processes of a run need the same blobs folder"
        ) from error
    return msgspec.structs.replace(envelope, body=body, claim="")


def remove_bodies(claims: Iterable[str], folder: Path) -> None:
    """Remove the files of bodies of trimmed events; only files in this folder are touched."""
    for claim in claims:
        (folder / Path(claim).name).unlink(missing_ok=True)
