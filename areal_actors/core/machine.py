"""Memory and disk of this machine, as far as a run may use them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

GROUPS = Path("/sys/fs/cgroup")
"""Control groups, in which a container or a service manager limits memory."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""Control groups of this process."""
FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Limit, use, and the field of `memory.stat` with what can be reclaimed; of version 2, and of version 1, in a folder of
its own."""


class Machine(NamedTuple):
    """Resources that a run may use."""

    memory_bytes: int
    """Memory that is free now, within the limits of control groups."""
    disk_bytes: int
    """Free space of the run's folder."""


def detect_machine(folder: Path) -> Machine:
    """Returns the free memory, and the free disk for a run in this folder, which may not exist yet."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return Machine(
        memory_bytes=min(psutil.virtual_memory().available, *_free_in_groups()),
        disk_bytes=shutil.disk_usage(place).free,
    )


def anonymous_bytes(pid: int) -> int:
    """Memory that a process allocates, without libraries and mapped weights.

    Elsewhere than on Linux it is its private memory.

    Raises:
        psutil.Error: there is no such process.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    kibibytes = next((line.split()[1] for line in lines if line.startswith("Anonymous:")), None)
    return int(kibibytes) * 1024 if kibibytes is not None else int(psutil.Process(pid).memory_full_info().uss)


def _free_in_groups() -> list[int]:
    """Memory that is left within the limits of this process's control group and of those around it.

    Without limits it is the machine's.
    """
    free = [psutil.virtual_memory().total]
    for controller, group in _own_groups():
        limit_file, use_file, reclaimable = FILES[controller]
        top = GROUPS / controller
        for place in (group, *(parent for parent in group.parents if parent == top or top in parent.parents)):
            limit = _number(place / limit_file)
            if limit is not None and limit < psutil.virtual_memory().total:
                used = (_number(place / use_file) or 0) - _stat(place / "memory.stat", reclaimable)
                free.append(max(limit - used, 0))
    return free


def _own_groups() -> Iterator[tuple[str, Path]]:
    """Yields the folders of this process's control groups that may limit memory, with the controller.

    The controller is `memory`, or empty for version 2.
    """
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            controller = "memory" if controllers else ""
            yield controller, GROUPS / controller / path.lstrip("/")


def _number(file: Path) -> int | None:
    """The number in a file; None if it is missing or holds `max`."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _stat(file: Path, field: str) -> int:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field} ")), 0)
