"""Claim check: images as files named by the digest of their content, in a folder beside the log.

Messages have only the digest.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import xxhash

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import ImageLost

FOLDER = "images"
"""Name of the folder within a run's."""


class ImageFolder:
    """The images of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()

    @classmethod
    def of_run(cls, run_folder: Path) -> ImageFolder:
        """The images of the run with this folder."""
        return cls(run_folder / FOLDER)

    def file(self, digest: str) -> Path:
        """The file of an image."""
        return self.path / f"{digest}.png"

    def store(self, png: bytes) -> str:
        """Write an image unless it is there already; returns its digest. Raises OSError if it cannot be written."""
        digest = xxhash.xxh3_128_hexdigest(png)
        with self._lock:  # two threads may store the same image
            if not self.holds(digest):
                self.path.mkdir(parents=True, exist_ok=True)
                atomic_write(self.file(digest), png)
        return digest

    def holds(self, digest: str) -> bool:
        """True if the file of an image is there and undamaged."""
        try:
            self.load(digest)
        except ImageLost:
            return False
        return True

    def load(self, digest: str) -> bytes:
        """The content of an image, verified.

        Raises:
            ImageLost: the file is missing or damaged.
        """
        file = self.file(digest)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ImageLost(
                f"the image {file} cannot be read ({error.strerror}); send the image again, or restore the file"
            ) from error
        if (actual_digest := xxhash.xxh3_128_hexdigest(content)) != digest:
            raise ImageLost(
                f"the image {file} is damaged: its digest is {actual_digest}; delete the file and send the image again,"
                " or restore it"
            )
        return content
