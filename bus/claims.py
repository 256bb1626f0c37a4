"""Claim check: a body too large for the wire lies in a file, and the message says where."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bus.base import Envelope
from bus.errors import ClaimLost, LogUnavailable

INLINE_LIMIT = 256 * 1024
"""Bytes of a message's body that travel with it."""


def check_in(envelope: Envelope, folder: Path) -> Envelope:
    """Put the body into a file of the folder; every process that may receive the message must see it there.

    The file is named after the message, so that saying it again leaves one file. Written without a pause of the event
    loop: what the same sender says next must not overtake it.

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
    """The envelope with its body in place; `keep=False` removes the file, when this is the only receiver.

    Only the name of the file counts, which lies in `folder`: logs of earlier versions have whole paths, and folders are moved.

    Raises:
        ClaimLost: the file is gone or cannot be read.
    """
    if not envelope.claim:
        return envelope
    if folder is None:
        raise ClaimLost(
            f"{envelope.subject} from {envelope.sender} ({envelope.id}): its body is in the file {envelope.claim}; "
            "connect with the run's blobs folder to read it"
        )
    path = folder / Path(envelope.claim).name
    try:
        body = path.read_bytes()
        if not keep:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ClaimLost(
            f"{envelope.subject} from {envelope.sender} ({envelope.id}): its body was put into {path}, which cannot be read: {error}; "
            "all processes of a run need the same blobs folder"
        ) from error
    return msgspec.structs.replace(envelope, body=body, claim="")


def remove_bodies(claims: Iterable[str], folder: Path) -> None:
    """Remove the files of bodies that nobody will read again; only files in the folder of bodies are touched."""
    for claim in claims:
        (folder / Path(claim).name).unlink(missing_ok=True)
