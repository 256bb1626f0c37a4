"""The checkpoints in a run's folder: paths, verification, and renaming of damaged ones.

Events name a checkpoint relative to the run's folder, which can be moved; events of earlier versions have an absolute
path, of which only the last component is used. Does not import torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from areal_actors.core.durable_files import storage_error
from areal_actors.messages import CheckpointCommitted
from areal_actors.weights.manifest import verify

CHECKPOINTS = "checkpoints"
"""Name of the folder within the run's."""
SET_ASIDE = "set-aside-"
"""Prefix of a damaged checkpoint."""
LEFT = "left-"
"""Prefix of an intact checkpoint later than the one that the run was rolled back to."""


class CheckpointStore:
    """All checkpoints of one run."""

    def __init__(self, root: Path, then: str = "") -> None:
        """Configure the store.

        Args:
            root: the run's folder.
            then: what to do once a place that cannot be written is writable again; by default to resume the run.
        """
        self.root = root
        self.then = then

    def path(self, folder: str) -> Path:
        """Path of a checkpoint that an event names."""
        return self.root / CHECKPOINTS / Path(folder).name if Path(folder).is_absolute() else self.root / folder

    def verify(self, saved: CheckpointCommitted) -> None:
        """Verify a checkpoint against its manifest, and the manifest against the log.

        Checkpoints of earlier versions have none.

        Raises:
            CheckpointError: it is damaged; states the found and the expected value.
        """
        if saved.manifest:
            verify(self.path(saved.folder), saved.manifest)

    def set_aside(self, folder: str, prefix: str = SET_ASIDE) -> str:
        """Rename a checkpoint, so that it is kept but not used.

        Returns its new name relative to the run, empty if it does not exist.
        """
        path = self.path(folder)
        if not path.is_dir():
            return ""
        number = 0
        while (aside := path.with_name(f"{prefix}{path.name}{f'.{number}' if number else ''}")).exists():
            number += 1
        path.rename(aside)
        return f"{CHECKPOINTS}/{aside.name}"

    def was_superseded(self, folder: str) -> bool:
        """True if the run was rolled back to an earlier checkpoint on purpose: this one is not missing by damage."""
        path = self.path(folder)
        return not path.is_dir() and any(path.parent.glob(f"{LEFT}{path.name}*"))

    def write(self, save: Callable[[str], None], folder: str) -> None:
        """Have an engine write a checkpoint into this folder; removes the folder on failure.

        Raises:
            SetupError: the disk is full, or the folder cannot be written.
        """
        path = self.path(folder)
        shutil.rmtree(path, ignore_errors=True)
        try:
            save(str(path))
        except Exception as error:
            refused = storage_error(
                f"cannot write a checkpoint to {path.parent}", error, path.parent, self.root, self.then
            )
            shutil.rmtree(path, ignore_errors=True)
            if refused is not None:
                raise refused from error
            raise


def folder_bytes(folder: Path) -> int:
    """Size of all files in a folder; files that vanish meanwhile are not counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except OSError:
                continue
    return total
