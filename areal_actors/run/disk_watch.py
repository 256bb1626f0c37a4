"""Free space on the disk of a run: refused at start below a minimum, watched while it runs, and ended in order before none is left."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from areal_actors.durable_files import MEBIBYTE
from areal_actors.engines.checkpoint_store import folder_bytes
from areal_actors.errors import SetupError
from areal_actors.messages import DiskLow
from areal_actors.run_folder import RunFolder
from areal_actors.settings import DiskSettings

LOOK_SECONDS = 5.0
WARN_FACTOR = 2
"""Below this multiple of what is needed there is a warning."""


def refuse_full_disk(settings: DiskSettings, folder: Path) -> None:
    """Check that a run has room to begin in.

    Raises:
        SetupError: it has not; says how much there is and how much was expected.
    """
    free = shutil.disk_usage(folder).free
    if free < settings.min_free_mb * MEBIBYTE:
        raise SetupError(
            f"disk.min_free_mb: {free // MEBIBYTE:,} MiB are free on the disk of {folder}, a run needs at least {settings.min_free_mb:,}; "
            "free space, or set folder to another disk"
        )


class DiskWatch:
    """A run ends while there is still room for its last checkpoint and its log."""

    def __init__(self, settings: DiskSettings, folder: RunFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.folder = folder
        self.clock = clock
        self.full = ""
        """Why the run has to end now; empty while it has not."""
        self._warned = False
        self._next_look = 0.0

    def look(self) -> DiskLow | None:
        """Look now and then; a warning, once, when the end is near."""
        if not self.settings.min_free_mb or self.clock() < self._next_look:
            return None
        self._next_look = self.clock() + LOOK_SECONDS
        free, needed = shutil.disk_usage(self.folder.path).free, self._needed()
        if free >= WARN_FACTOR * needed:
            return None
        figures = (
            f"{free // MEBIBYTE:,} MiB are free on the disk of {self.folder.path}, a checkpoint and the log need {needed // MEBIBYTE:,}"
        )
        if free < needed and not self.full:
            self.full = f"{figures}: free space, or lower disk.min_free_mb"
        if self._warned:
            return None
        self._warned = True
        return DiskLow(free_bytes=free, needed_bytes=needed, reason=f"{figures}; the run saves one and ends when less is left")

    def _needed(self) -> int:
        """The minimum, and room for one more checkpoint as large as the largest so far."""
        checkpoints = [path for path in self.folder.checkpoints.glob("*step-*") if path.is_dir() and not path.is_symlink()]
        return self.settings.min_free_mb * MEBIBYTE + max(map(folder_bytes, checkpoints), default=0)
