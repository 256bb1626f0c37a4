"""Published weights on a host that does not share the trainer's memory.

Each version is pulled once for all workers of the host.
"""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from areal_actors.core.errors import EngineError, WeightsSuperseded
from areal_actors.core.objects import MODEL, WEIGHTS, RemoteObjects
from areal_actors.core.values import WeightsLocation
from areal_actors.weights.folders import SHARE, prune, version_folder
from areal_actors.weights.weight_files import checksum_of, stored_tensors

KEPT = 2
"""Versions kept on a host: the newest, and one that a slower worker may still be loading."""


class WeightsPuller:
    """Finds published weights on this host, or pulls them from the trainer's."""

    def __init__(self, objects: RemoteObjects, root: Path, model: Path, share: str) -> None:
        """`root`: folder of the pulled versions; `model`: the pulled model.

        `share`: identity of the trainer's folders.
        """
        self._objects, self._root, self._model, self._share = objects, root, model, share

    async def __call__(self, location: WeightsLocation, weight_version: int) -> WeightsLocation:
        """Returns the location of a version on this host.

        Raises:
            WeightsSuperseded: the version was removed because newer ones were published.
            EngineError: it arrived damaged, or is an adapter of a base that this host does not have.
            OSError: it cannot be pulled.
        """
        return await asyncio.to_thread(self._locate, location, weight_version)

    def _locate(self, location: WeightsLocation, weight_version: int) -> WeightsLocation:
        if location.base and not Path(location.base).is_dir():
            remedy = 'write trainer.lora.published = "merged", or name a shared trainer.weights_folder'
            raise EngineError(f"this host has no {location.base}, the rounded base of the adapters: {remedy}")
        self._pull_once(self._model, lambda partial: self._objects.pull(MODEL, partial))
        local = msgspec.structs.replace(location, model=str(self._model))
        if self._is_shared(Path(location.folder)):
            return local
        folder = version_folder(self._root, weight_version)
        try:
            self._pull_once(folder, lambda partial: self._pull_version(location, weight_version, partial))
        except FileNotFoundError as error:
            raise WeightsSuperseded(f"weight version {weight_version} was replaced by a newer one: {error}") from error
        return msgspec.structs.replace(local, folder=str(folder))

    def _is_shared(self, published: Path) -> bool:
        """True if the trainer's folder is on this host: its mark is the one of the run's files."""
        with suppress(OSError):
            return (published.parent / SHARE).read_text() == self._share and published.is_dir()
        return False

    def _pull_version(self, location: WeightsLocation, weight_version: int, partial: Path) -> None:
        self._objects.pull(f"{WEIGHTS}{weight_version}", partial)
        if (actual_checksum := checksum_of(stored_tensors(partial))) != location.checksum:
            raise EngineError(
                f"weight version {weight_version} arrived with checksum {actual_checksum}, expected {location.checksum}"
            )
        prune(self._root, KEPT - 1)

    def _pull_once(self, folder: Path, pull: Callable[[Path], None]) -> None:
        """Pull a folder unless it is there; another worker of this host that needs it waits meanwhile."""
        with _lock_folder(folder.parent):
            if folder.is_dir():
                return
            partial = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
            try:
                pull(partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _lock_folder(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".pulling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
