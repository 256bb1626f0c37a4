"""The checkpoints in a run's folder: where they lie, whether they are sound, and what becomes of those that are not.

Events name a checkpoint relative to the run's folder, which can be moved; those of earlier versions name it by an absolute
path, of which only the last part counts. Needs no torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from areal_actors.durable_files import disk_full, is_disk_full
from areal_actors.engines.manifest import verify
from areal_actors.messages import CheckpointSaved

CHECKPOINTS = "checkpoints"
"""Name of the folder within the run's."""
SET_ASIDE = "set-aside-"
"""Prefix of a checkpoint that is damaged."""
LEFT = "left-"
"""Prefix of a sound one, later than that which the run was asked to go back to."""


class CheckpointStore:
    """All checkpoints of one run."""

    def __init__(self, root: Path) -> None:
        """`root` is the run's folder."""
        self.root = root

    def path(self, folder: str) -> Path:
        """Where a checkpoint lies that an event names."""
        return self.root / CHECKPOINTS / Path(folder).name if Path(folder).is_absolute() else self.root / folder

    def verify(self, saved: CheckpointSaved) -> None:
        """Check a checkpoint against its manifest, and that against the log; one that an earlier version wrote has none.

        Raises:
            CheckpointError: it is damaged; names what was found and what was expected.
        """
        if saved.manifest:
            verify(self.path(saved.folder), saved.manifest)

    def set_aside(self, folder: str, prefix: str = SET_ASIDE) -> str:
        """Rename a checkpoint, so that it is kept but not used; its new name as an event has it, empty if nothing is there."""
        path = self.path(folder)
        if not path.is_dir():
            return ""
        number = 0
        while (aside := path.with_name(f"{prefix}{path.name}{f'.{number}' if number else ''}")).exists():
            number += 1
        path.rename(aside)
        return f"{CHECKPOINTS}/{aside.name}"

    def was_superseded(self, folder: str) -> bool:
        """Whether the run was asked to go back further than this checkpoint, which is then no damage."""
        path = self.path(folder)
        return not path.is_dir() and any(path.parent.glob(f"{LEFT}{path.name}*"))

    def write(self, save: Callable[[str], None], folder: str) -> None:
        """Let an engine write a checkpoint into a folder of this name; what fails is not left there.

        Raises:
            SetupError: the disk is full.
        """
        path = self.path(folder)
        shutil.rmtree(path, ignore_errors=True)
        try:
            save(str(path))
        except Exception as error:
            full = is_disk_full(error, self.root)
            shutil.rmtree(path, ignore_errors=True)
            if full:
                raise disk_full(f"a checkpoint cannot be written to {path.parent}", self.root) from error
            raise


def folder_bytes(folder: Path) -> int:
    """Size of all files in a folder; files that vanish meanwhile count nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except OSError:
                continue
    return total
