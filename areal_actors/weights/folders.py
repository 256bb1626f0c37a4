"""Folders of weight versions on a host. Separate from reading and writing, so that cleaning up does not need torch."""

from __future__ import annotations

import os
import re
import shutil
from hashlib import blake2b
from pathlib import Path

LOCK_SUFFIX = ".lock"
SHARE = ".share"
"""File beside the versions by which another process of the host recognises the folder."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the one place where a file is memory that other processes can map

ADAPTER_CONFIG = "adapter_config.json"
"""File in the folder of an adapter, in peft's format."""


def version_folder(root: str | Path, weight_version: int) -> Path:
    """Folder of a weight version."""
    return Path(root) / f"v{weight_version}"


def shared_memory_path(run: str, run_folder: str | Path) -> Path:
    """Shared-memory folder of a run; stable across restarts, so that a restarted trainer finds and prunes its versions."""
    owner = blake2b(str(Path(run_folder).absolute()).encode(), digest_size=4).hexdigest()
    return SHARED_MEMORY / f"areal-{re.sub('[^A-Za-z0-9_.-]', '-', run)}-{owner}"


def lock_path(folder: Path) -> Path:
    """Lock file that a run holds while its weights are in this folder."""
    return folder.with_name(f"{folder.name}{LOCK_SUFFIX}")


def locked_folders() -> list[Path]:
    """Folders in shared memory with a lock file: those of live runs, and of killed runs that left them behind."""
    return sorted(path.with_name(path.name.removesuffix(LOCK_SUFFIX)) for path in SHARED_MEMORY.glob(f"areal-*{LOCK_SUFFIX}"))


def shared_memory_folder(run: str, run_folder: str | Path, needed_bytes: int = 0) -> Path:
    """Folder of weight versions on this host: in shared memory if it is writable and has room, else in the run's folder."""
    shared = shared_memory_path(run, run_folder)
    if shared.is_dir():
        return shared
    if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= needed_bytes:
        shared.mkdir(exist_ok=True)
        return shared
    return Path(run_folder).absolute() / "weights"


def holds_adapter(folder: str | Path) -> bool:
    """True if a weight version is an adapter, False for full weights."""
    return (Path(folder) / ADAPTER_CONFIG).is_file()


def prune(folder: str | Path, keep: int) -> None:
    """Remove all but the newest `keep` versions, and all partial ones."""
    versions = _versions(Path(folder))
    outdated = [versions[version] for version in sorted(versions, reverse=True)[keep:]]
    for path in [*outdated, *Path(folder).glob("v*.partial-*")]:
        shutil.rmtree(path, ignore_errors=True)


def is_superseded(folder: str | Path) -> bool:
    """True if a version was removed because newer ones were published: its files are gone, and a newer version lies beside it."""
    place = Path(folder)
    if not place.name[1:].isdecimal() or any(place.glob("*.safetensors")):
        return False
    return max(_versions(place.parent), default=-1) > int(place.name[1:])


def _versions(folder: Path) -> dict[int, Path]:
    return {int(path.name[1:]): path for path in folder.glob("v*") if path.name[1:].isdecimal()}


def remove_all(run: str, run_folder: str | Path) -> None:
    """Remove all weight versions of a finished run; its checkpoints stay."""
    shutil.rmtree(shared_memory_path(run, run_folder), ignore_errors=True)
    shutil.rmtree(Path(run_folder) / "weights", ignore_errors=True)
