"""Free disk space of a run: checked at start and while it runs; the run saves and ends before the disk is full."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from areal_actors.core.durable_files import MEBIBYTE, explain_os_error
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import DiskLow
from areal_actors.recipe.run_settings import DiskSettings
from areal_actors.training.checkpoint_store import folder_bytes
from areal_bus.descriptors import is_out_of_descriptors

CHECK_SECONDS = 5.0
WARN_FACTOR = 2
"""Free space below this multiple of the needed space causes a warning."""

logger = structlog.get_logger(__name__)


def refuse_full_disk(settings: DiskSettings, folder: Path, checkpoint_bytes: int = 0) -> None:
    """Check that the disk has room for a run, with one checkpoint of this size.

    Raises:
        SetupError: it has not; the message gives the free and the required space.
    """
    free = shutil.disk_usage(folder).free
    needed = settings.min_free_mb * MEBIBYTE + checkpoint_bytes
    if settings.min_free_mb and free < needed:
        each = f" ({checkpoint_bytes // MEBIBYTE:,} for a checkpoint)" if checkpoint_bytes >= MEBIBYTE else ""
        raise SetupError(
            f"disk.min_free_mb: {free // MEBIBYTE:,} MiB are free on the disk of {folder}, a run needs at least"
            f" {needed // MEBIBYTE:,}{each}; free space, or set folder to another disk"
        )


class DiskWatch:
    """A run ends while there is still room for its last checkpoint and its log."""

    def __init__(
        self,
        settings: DiskSettings,
        folder: RunFolder,
        clock: Callable[[], float] = time.monotonic,
        checkpoint_bytes: int = 0,
    ) -> None:
        """`checkpoint_bytes` is the expected size of a checkpoint, until there is one that is larger."""
        self.settings = settings
        self.checkpoint_bytes = checkpoint_bytes
        self.folder = folder
        self.clock = clock
        self.full = ""
        """Reason why the run must end now; empty otherwise."""
        self._warned = False
        self._next_check = 0.0

    def check(self) -> DiskLow | None:
        """Check from time to time; returns one warning when space is low."""
        if not self.settings.min_free_mb or self.clock() < self._next_check:
            return None
        self._next_check = self.clock() + CHECK_SECONDS
        try:
            free, needed = shutil.disk_usage(self.folder.path).free, self._needed_bytes()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            logger.warning("free disk space cannot be checked now", reason=explain_os_error(error))
            return None
        if free >= WARN_FACTOR * needed:
            return None
        figures = (
            f"{free // MEBIBYTE:,} MiB are free on the disk of {self.folder.path}, a checkpoint and the log need"
            f" {needed // MEBIBYTE:,}"
        )
        if free < needed and not self.full:
            self.full = f"{figures}: free space, or lower disk.min_free_mb"
        if self._warned:
            return None
        self._warned = True
        return DiskLow(
            free_bytes=free,
            needed_bytes=needed,
            reason=f"{figures}; the run saves a checkpoint and ends if less is free",
        )

    def _needed_bytes(self) -> int:
        """The configured minimum plus the size of the largest checkpoint so far, or that expected."""
        checkpoints: list[Path] = []
        if self.folder.checkpoints.is_dir():
            with os.scandir(
                self.folder.checkpoints
            ) as entries:  # some versions of Path.glob find nothing where they cannot read
                checkpoints = [
                    Path(entry) for entry in entries if "step-" in entry.name and entry.is_dir(follow_symlinks=False)
                ]
        return self.settings.min_free_mb * MEBIBYTE + max(self.checkpoint_bytes, *map(folder_bytes, checkpoints), 0)
