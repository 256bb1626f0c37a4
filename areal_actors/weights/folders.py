"""Folders of weight versions on a host. Separate from reading and writing, so that cleaning up does not need torch."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from hashlib import blake2b
from pathlib import Path

from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.errors import SetupError
from areal_actors.core.private_folders import is_own, make_private, take_private

LOCK_SUFFIX = ".lock"
SHARE = ".share"
"""File beside the versions by which another process of the host recognises the folder."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the one place where a file is memory that other processes can map

SECRET_FILE = "secret"  # noqa: S105 - the name of a file
"""File of a run's folder whose bytes only the run's user knows."""

SPARE_VERSIONS = 1
"""Versions kept beyond the maximum staleness while one is written, for an inference worker that loads the one before
it."""
ADAPTER_CONFIG = "adapter_config.json"
"""File in the folder of an adapter, in peft's format."""


def kept_versions(max_staleness: int) -> int:
    """Number of versions that are kept."""
    return max_staleness + SPARE_VERSIONS


def version_folder(root: str | Path, weight_version: int) -> Path:
    """Folder of a weight version."""
    return Path(root) / f"v{weight_version}"


def make_secret(run_folder: str | Path) -> None:
    """Write the secret of a folder that no command has started, unless it has one.

    Ranks may call this at the same time.
    """
    place = Path(run_folder) / SECRET_FILE
    if place.exists():
        return
    make_private(Path(run_folder))
    own = place.with_name(f"{SECRET_FILE}.{secrets.token_hex(8)}")
    own.touch(mode=0o600)
    own.write_bytes(secrets.token_bytes(32))
    try:
        os.link(own, place)  # whole or not at all; the first one wins
    except FileExistsError:
        pass
    finally:
        own.unlink()


def shared_memory_path(run: str, run_folder: str | Path) -> Path:
    """Shared-memory folder of a run; stable across restarts, so that a restarted trainer finds and prunes its versions.

    Its name is a digest of the run's secret, so that no other user can foresee it.

    Raises:
        FileNotFoundError: the run's folder has not been made.
    """
    secret = (Path(run_folder) / SECRET_FILE).read_bytes()
    owner = blake2b(
        str(Path(run_folder).absolute()).encode(), key=secret[: blake2b.MAX_KEY_SIZE], digest_size=16
    ).hexdigest()
    return SHARED_MEMORY / f"areal-{_in_name(run)}-{owner}"


def named_path(folder: str, run: str, run_folder: str | Path) -> Path:
    """Folder of a run's versions within one that a recipe names."""
    owner = blake2b(str(Path(run_folder).absolute()).encode(), digest_size=4).hexdigest()
    return Path(folder) / f"areal-{_in_name(run)}-{owner}"


def _in_name(run: str) -> str:
    return re.sub("[^A-Za-z0-9_.-]", "-", run)


def lock_path(folder: Path) -> Path:
    """Lock file that a run holds while its weights are in this folder."""
    return folder.with_name(f"{folder.name}{LOCK_SUFFIX}")


def locked_folders() -> list[Path]:
    """This user's folders in shared memory with a lock file.

    They are those of live runs, and of killed runs that left them behind.
    """
    places = (
        path.with_name(path.name.removesuffix(LOCK_SUFFIX)) for path in SHARED_MEMORY.glob(f"areal-*{LOCK_SUFFIX}")
    )
    return sorted(place for place in places if is_own(place) or not os.path.lexists(place))


def versions_folder(run: str, run_folder: str | Path, needed_bytes: int = 0, named: str = "") -> Path:
    """Folder of a run's weight versions.

    In the named one; else in shared memory if it is writable and has room; else in the run's folder.
    It is made, closed to other users, unless the recipe names it.

    Raises:
        SetupError: it does not exist yet, and its file system has no room for these bytes, or another user has made it.
        FileNotFoundError: the run's folder has not been made.
    """
    shared = shared_memory_path(run, run_folder)
    if not named and (os.path.lexists(shared) or has_shared_room(needed_bytes)):
        take_private(shared)
        return shared
    place = disk_place(run, run_folder, needed_bytes, named)
    if not named:
        make_private(place)
    return place


def check_room(run: str, run_folder: str | Path, needed_bytes: int, named: str = "") -> None:
    """Check that the weight versions of a run that starts have room.

    Raises:
        SetupError: there is none for these bytes.
    """
    if named or not has_shared_room(needed_bytes):
        disk_place(run, run_folder, needed_bytes, named)


def has_shared_room(needed_bytes: int) -> bool:
    """Returns True if shared memory is writable and has room."""
    return is_writable(SHARED_MEMORY) and shutil.disk_usage(SHARED_MEMORY).free >= needed_bytes


def is_writable(folder: Path) -> bool:
    """Returns True if this user may write into a folder, and its file system is not mounted read-only."""
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_RDONLY


def disk_place(run: str, run_folder: str | Path, needed_bytes: int = 0, named: str = "") -> Path:
    """Folder of a run's weight versions on a disk: in the named one, else in the run's folder.

    Raises:
        SetupError: it does not exist yet, and its file system has no room for these bytes.
    """
    place = named_path(named, run, run_folder) if named else Path(run_folder).absolute() / "weights"
    existing = next(path for path in (place, *place.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if existing != place and free < needed_bytes:
        whose = "" if named else f", nor is there in {SHARED_MEMORY}"
        raise SetupError(
            f"no room for the published weights in {existing}{whose}: {free // MEBIBYTE:,} MiB are free, the versions"
            f" that are kept take {needed_bytes // MEBIBYTE:,}; free space, set trainer.weights_folder to another disk,"
            " or lower staleness_gate.max_staleness"
        )
    return place


def possible_folders(run: str, run_folder: str | Path, named: str = "") -> list[Path]:
    """Returns every folder in which versions of a run may lie; see `versions_folder`."""
    inside = Path(run_folder).absolute() / "weights"
    unnamed = [shared_memory_path(run, run_folder), inside] if (Path(run_folder) / SECRET_FILE).is_file() else [inside]
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
    """True if a version was removed because newer ones were published.

    Its files are gone, and a newer version lies beside it.
    """
    place = Path(folder)
    if not place.name[1:].isdecimal() or any(place.glob("*.safetensors")):
        return False
    return max(_versions(place.parent), default=-1) > int(place.name[1:])


def _versions(folder: Path) -> dict[int, Path]:
    return {int(path.name[1:]): path for path in folder.glob("v*") if path.name[1:].isdecimal()}


def remove_all(run: str, run_folder: str | Path, named: str = "") -> None:
    """Remove all weight versions of a finished run, also those in the folder that its recipe names.

    Its checkpoints stay.
    """
    for folder in possible_folders(run, run_folder, named):
        shutil.rmtree(folder, ignore_errors=True)
