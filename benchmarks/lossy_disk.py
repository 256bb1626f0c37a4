"""A small disk with simulated power failures: data that the file system has not written to the device is lost.

An ext4 file system on a loop device over a file. The file is the device and does not contain the page cache. So a copy
of the file is the state after a power failure, and mounting the copy replays the file system's journal. Needs root and
loop devices.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLS = ("mkfs.ext4", "losetup", "mount", "umount")


def can_lose_power() -> bool:
    """True if this user can create and mount loop devices."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in TOOLS):
        return False
    return (
        Path("/dev/loop-control").exists()
        and subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode == 0
    )


class LossyDisk:
    """A disk in a folder, mounted at `root`."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self.device = folder / "disk.img"
        self.root = folder / "disk"
        self.root.mkdir(parents=True)
        with self.device.open("wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", str(self.device))
        _run("mount", "-o", "loop", str(self.device), str(self.root))

    def lose_power(self) -> Path:
        """Copy the current state of the device to another file; the disk stays mounted."""
        left = self.folder / "after.img"
        _run("cp", "--sparse=always", str(self.device), str(left))
        return left

    def come_back(self, left: Path) -> None:
        """Mount the state after the power failure at the same path."""
        self.unmount()
        left.replace(self.device)
        _run("mount", "-o", "loop", str(self.device), str(self.root))

    def unmount(self) -> None:
        """Unmount the disk."""
        _run("umount", "--lazy", str(self.root))  # a process that was killed may not be gone yet


@contextmanager
def lossy_disk(folder: Path, megabytes: int = 256) -> Iterator[LossyDisk]:
    """Create an empty disk."""
    disk = LossyDisk(folder, megabytes)
    try:
        yield disk
    finally:
        disk.unmount()


@contextmanager
def mounted(device: Path) -> Iterator[Path]:
    """Mount the copy of a device."""
    root = device.with_suffix(".mounted")
    root.mkdir(exist_ok=True)
    _run("mount", "-o", "loop", str(device), str(root))
    try:
        yield root
    finally:
        _run("umount", str(root))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
