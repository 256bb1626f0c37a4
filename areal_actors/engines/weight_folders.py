"""Where versions of the weights lie on a host. Apart from what reads and writes them, so that nobody needs torch to clean up."""

from __future__ import annotations

import os
import re
import shutil
from hashlib import blake2b
from pathlib import Path

LOCK_SUFFIX = ".lock"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the one place where a file is memory that other processes can map


def version_folder(root: str | Path, weight_version: int) -> Path:
    """Where a version's files lie."""
    return Path(root) / f"v{weight_version}"


def place_in_shared_memory(run: str, run_folder: str | Path) -> Path:
    """The name, the same whenever the run in this folder asks, so that a restarted trainer finds and prunes its own."""
    owner = blake2b(str(Path(run_folder).absolute()).encode(), digest_size=4).hexdigest()
    return SHARED_MEMORY / f"areal-{re.sub('[^A-Za-z0-9_.-]', '-', run)}-{owner}"


def lock_of(place: Path) -> Path:
    """The file whose lock the run that has its weights in this place holds."""
    return place.with_name(f"{place.name}{LOCK_SUFFIX}")


def locked_places() -> list[Path]:
    """Places in shared memory that have a lock file: those of live runs, and of runs that were killed and could not remove them."""
    return sorted(path.with_name(path.name.removesuffix(LOCK_SUFFIX)) for path in SHARED_MEMORY.glob(f"areal-*{LOCK_SUFFIX}"))


def shared_memory_folder(run: str, run_folder: str | Path, needed_bytes: int = 0) -> Path:
    """Where versions of this host's weights lie: in shared memory when it is writable and has room, else in the run's folder."""
    shared = place_in_shared_memory(run, run_folder)
    if shared.is_dir():
        return shared
    if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= needed_bytes:
        shared.mkdir(exist_ok=True)
        return shared
    return Path(run_folder).absolute() / "weights"


def prune(folder: str | Path, keep: int) -> None:
    """Remove all but the newest `keep` versions, and what half-written ones left behind."""
    versions = {int(path.name[1:]): path for path in Path(folder).glob("v*") if path.name[1:].isdecimal()}
    outdated = [versions[version] for version in sorted(versions, reverse=True)[keep:]]
    for path in [*outdated, *Path(folder).glob("v*.partial-*")]:
        shutil.rmtree(path, ignore_errors=True)


def remove_all(run: str, run_folder: str | Path) -> None:
    """Remove every version of a run that is over; the model itself stays in the run's checkpoints."""
    shutil.rmtree(place_in_shared_memory(run, run_folder), ignore_errors=True)
    shutil.rmtree(Path(run_folder) / "weights", ignore_errors=True)
