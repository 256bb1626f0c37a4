"""The manifest of a checkpoint: size and digest of every file, to detect damage before training continues from it.

`manifest.json` is written last, after all other files are synced. Its own digest is in the log
(`CheckpointCommitted.manifest`), which detects a checkpoint whose files and manifest were both replaced. Does not
import torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import file_digest, sha256
from pathlib import Path

import msgspec

from areal_actors.core.durable_files import atomic_write, fsync_path
from areal_actors.core.errors import CheckpointError, SetupError
from areal_bus.message import FrozenMeta

MANIFEST = "manifest.json"
PROOF = "proof.json"
"""Written into a checkpoint once its manifest is in the log: it has that one's digest, and is not listed there."""
CURSOR = "cursor"
"""Position in the log of the run that wrote the checkpoint."""
FORMAT = "areal-actors checkpoint 1"
LOADED = (".safetensors", ".bin", ".pt", ".pth", ".distcp")
"""Suffixes of files that loaders find by pattern: a checkpoint must not contain one that its manifest does not list."""


class FileDigest(msgspec.Struct, metaclass=FrozenMeta):
    """Expected size and digest of a file."""

    size: int
    """Bytes."""
    sha256: str
    """In hexadecimal, as `sha256sum` prints it."""


class Manifest(msgspec.Struct, metaclass=FrozenMeta):
    """`manifest.json`."""

    format: str
    step: int
    """Steps that the weights have been trained."""
    cursor: int
    """As `CheckpointCommitted.cursor`."""
    files: dict[str, FileDigest]
    """By path relative to the folder."""


def write_manifest(folder: Path, *, step: int = -1, cursor: int = 0) -> str:
    """Sync every file of a checkpoint, then write the manifest; returns the manifest's own digest.

    Raises:
        OSError: writing failed, for example on a full disk.
    """
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for name in (MANIFEST, PROOF):
        files.pop(name, None)
    digests = {name: _digest(path, on_disk=True) for name, path in files.items()}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            fsync_path(path)
    content = msgspec.json.format(
        msgspec.json.encode(Manifest(format=FORMAT, step=step, cursor=cursor, files=digests)), indent=1
    )
    atomic_write(folder / MANIFEST, content)
    return _hexadecimal(content)


def digest_of_manifest(folder: Path) -> str:
    """Digest of a checkpoint's manifest; empty if there is none."""
    path = folder / MANIFEST
    return _hexadecimal(path.read_bytes()) if path.is_file() else ""


def verify(folder: Path, digest: str = "") -> None:
    """Verify every byte of a checkpoint.

    Args:
        folder: the checkpoint.
        digest: digest of its manifest from the log; empty to trust the manifest.

    Raises:
        CheckpointError: a file is missing or differs; states the found and the expected value.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} does not exist")
    try:
        if differences := list(_differences(folder, digest)):
            more = f" ({len(differences)} differences in all)" if len(differences) > 1 else ""
            raise CheckpointError(f"{folder}: {differences[0]}{more}")
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error


def read_verified(folder: Path, name: str, digest: str) -> bytes:
    """Returns one small file of a checkpoint, verified; the others are not read.

    Args:
        folder: the checkpoint.
        name: the file, relative to the folder.
        digest: digest of the manifest.

    Raises:
        CheckpointError: the file or the manifest is missing or differs.
    """
    try:
        content, manifest = (folder / name).read_bytes(), _manifest(folder, digest)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error
    if isinstance(manifest, str):
        raise CheckpointError(f"{folder}: {manifest}")
    expected = manifest.files.get(name)
    if expected is None or expected.sha256 != _hexadecimal(content):
        raise CheckpointError(f"{folder}: {name} is not the file that {MANIFEST} lists: its content has changed")
    return content


def verify_model(folder: Path) -> None:
    """Verify the model folder of a run or of a server, if it is a checkpoint with a manifest.

    Raises:
        SetupError: it is damaged; states the remedy.
    """
    if not is_checkpoint(folder):
        return
    try:
        verify(folder)
    except CheckpointError as error:
        raise SetupError(
            f"the checkpoint {error}; choose another one, for example model={folder.parent / 'step-N'}, or, if you"
            f" changed it yourself, delete its {MANIFEST}"
        ) from error


def is_checkpoint(folder: Path) -> bool:
    """True if the folder has a manifest of ours, even an unreadable one."""
    path = folder / MANIFEST
    content = path.read_bytes() if path.is_file() else b"{}"
    try:
        msgspec.json.decode(content)
    except msgspec.DecodeError:
        return True
    return FORMAT.rpartition(" ")[0].encode() in content


def _differences(folder: Path, digest: str) -> Iterator[str]:
    manifest = _manifest(folder, digest)
    if isinstance(manifest, str):
        yield manifest
        return
    for name, expected in manifest.files.items():
        if name != PROOF:  # manifests of earlier versions have that of the checkpoint that was the model
            yield from _difference(folder, name, expected)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix in LOADED and name not in manifest.files:
            yield f"{name} is not in {MANIFEST}, and would be loaded"


def _manifest(folder: Path, digest: str) -> Manifest | str:
    """The manifest, or what is wrong with it."""
    path = folder / MANIFEST
    if not path.is_file():
        return f"{MANIFEST} is missing"
    content = path.read_bytes()
    if digest and (actual_digest := _hexadecimal(content)) != digest:
        return f"{MANIFEST} has digest {actual_digest[:16]}…, expected {digest[:16]}… as recorded when it was saved"
    try:
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        return f"{MANIFEST} cannot be read ({error})"


def _difference(folder: Path, name: str, expected: FileDigest) -> Iterator[str]:
    path = folder / name
    if not path.is_file():
        yield f"{name} is missing"
        return
    if (size := path.stat().st_size) != expected.size:
        yield f"{name} has {size:,} bytes, expected {expected.size:,} from {MANIFEST}"
        return
    actual_digest = _digest(path)
    if actual_digest != expected:
        yield (
            f"{name} has digest {actual_digest.sha256[:16]}…, expected {expected.sha256[:16]}… from {MANIFEST}: its"
            " content has changed"
        )


def _digest(path: Path, *, on_disk: bool = False) -> FileDigest:
    """Hash a file; `on_disk` syncs it before."""
    with path.open("rb") as file:
        if on_disk:
            os.fsync(file.fileno())
        digest = file_digest(file, sha256).hexdigest()
        return FileDigest(size=file.tell(), sha256=digest)


def _hexadecimal(content: bytes) -> str:
    return sha256(content).hexdigest()
