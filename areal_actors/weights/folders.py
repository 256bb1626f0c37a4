"""Folders of weight versions on a host. Separate from reading and writing, so that cleaning up does not need torch."""

from __future__ import annotations

import os
import re
import shutil
from hashlib import blake2b
from pathlib import Path

from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.errors import SetupError

LOCK_SUFFIX = ".lock"
SHARE = ".share"
"""File beside the versions by which another process of the host recognises the folder."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the one place where a file is memory that other processes can map

SPARE_VERSIONS = 1
"""Versions kept beyond the maximum staleness while one is written, for an inference worker that loads the one before it."""
ADAPTER_CONFIG = "adapter_config.json"
"""File in the folder of an adapter, in peft's format."""


def kept_versions(max_staleness: int) -> int:
    """Number of versions that are kept."""
    return max_staleness + SPARE_VERSIONS


def version_folder(root: str | Path, weight_version: int) -> Path:
    """Folder of a weight version."""
    return Path(root) / f"v{weight_version}"


def shared_memory_path(run: str, run_folder: str | Path) -> Path:
    """Shared-memory folder of a run; stable across restarts, so that a restarted trainer finds and prunes its versions."""
    return SHARED_MEMORY / _name(run, run_folder)


def named_path(folder: str, run: str, run_folder: str | Path) -> Path:
    """Folder of a run's versions within one that a recipe names."""
    return Path(folder) / _name(run, run_folder)


def _name(run: str, run_folder: str | Path) -> str:
    owner = blake2b(str(Path(run_folder).absolute()).encode(), digest_size=4).hexdigest()
    return f"areal-{re.sub('[^A-Za-z0-9_.-]', '-', run)}-{owner}"


def lock_path(folder: Path) -> Path:
    """Lock file that a run holds while its weights are in this folder."""
    return folder.with_name(f"{folder.name}{LOCK_SUFFIX}")


def locked_folders() -> list[Path]:
    """Folders in shared memory with a lock file: those of live runs, and of killed runs that left them behind."""
    return sorted(path.with_name(path.name.removesuffix(LOCK_SUFFIX)) for path in SHARED_MEMORY.glob(f"areal-*{LOCK_SUFFIX}"))


def versions_folder(run: str, run_folder: str | Path, needed_bytes: int = 0, named: str = "") -> Path:
    """Folder of a run's weight versions: in the named one; else in shared memory if it is writable and has room; else in the run's folder.

    Raises:
        SetupError: it does not exist yet, and its file system has no room for these bytes.
    """
    shared = shared_memory_path(run, run_folder)
    if not named and (shared.is_dir() or (os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= needed_bytes)):
        return shared
    place = named_path(named, run, run_folder) if named else Path(run_folder).absolute() / "weights"
    there = next(path for path in (place, *place.parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if there != place and free < needed_bytes:
        whose = "" if named else f", nor is there in {SHARED_MEMORY}"
        raise SetupError(
            f"no room for the published weights in {there}{whose}: {free // MEBIBYTE:,} MiB are free, the versions that are kept take "
            f"{needed_bytes // MEBIBYTE:,}; free space, set trainer.weights_folder to another disk, or lower staleness_gate.max_staleness"
        )
    return place


def possible_folders(run: str, run_folder: str | Path, named: str = "") -> list[Path]:
    """Returns every folder in which versions of a run may lie; see `versions_folder`."""
    unnamed = [shared_memory_path(run, run_folder), Path(run_folder).absolute() / "weights"]
    return [named_path(named, run, run_folder), *unnamed] if named else unnamed


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


def remove_all(run: str, run_folder: str | Path, named: str = "") -> None:
    """Remove all weight versions of a finished run, also those in the folder that its recipe names; its checkpoints stay."""
    for folder in possible_folders(run, run_folder, named):
        shutil.rmtree(folder, ignore_errors=True)
