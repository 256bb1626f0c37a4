"""The place of a training loop on disk: weights and optimizer, the step, and the rows that are still to be trained."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import CheckpointError

PLACE = "place.json"


class LoopPlace(msgspec.Struct, frozen=True):
    """The state of a loop after a step."""

    step: int = 0
    checkpoint: str = ""
    """Folder of weights and optimizer state, beside the file; empty before the first step."""
    next_draw: int = 0
    """First draw of the dataset's order that was not made."""
    left: tuple[int, ...] = ()
    """Draws before it that are in no batch: their episodes were running, waited, or failed."""


class PlaceFolder:
    """The folder `recover` of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> LoopPlace:
        """Returns the place that was kept; the beginning if none was.

        Raises:
            CheckpointError: the file is damaged.
        """
        try:
            return msgspec.json.decode((self.folder / PLACE).read_bytes(), type=LoopPlace)
        except FileNotFoundError:
            return LoopPlace()
        except msgspec.DecodeError as error:
            damage = f"{self.folder / PLACE} is damaged: {error}"
            raise CheckpointError(f"{damage}; remove {self.folder} to begin anew") from error

    def keep(self, place: LoopPlace, save: Callable[[Path], None]) -> None:
        """Save a checkpoint, then the place, then remove the earlier checkpoint: a kill leaves one that is whole."""
        name = f"step-{place.step}"
        save(self.folder / name)
        named = msgspec.structs.replace(place, checkpoint=name)
        atomic_write(self.folder / PLACE, msgspec.json.encode(named))
        for other in self.folder.glob("step-*"):
            if other.name != name:
                shutil.rmtree(other)


class Draws:
    """The rows of a loop in their order: those that a place left, then further ones; it knows which were trained."""

    def __init__(self, place: LoopPlace, row_of: Callable[[int], int | None]) -> None:
        """`row_of`: row of a draw; None for one that the end of an epoch leaves out."""
        self._row_of = row_of
        self._next = place.next_draw
        self._waiting = list(place.left)
        self._made: list[int] = []
        """Draw of each submitted task, by its number."""
        self._trained: set[int] = set()

    def rows(self) -> Iterator[int]:
        """Yields row numbers endlessly."""
        while True:
            if self._waiting:
                draw = self._waiting.pop(0)
            else:
                draw, self._next = self._next, self._next + 1
            if (row := self._row_of(draw)) is not None:
                self._made.append(draw)
                yield row

    def train(self, numbers: Sequence[int]) -> None:
        """Note the tasks of a batch, by their numbers."""
        self._trained.update(numbers)

    def place(self, step: int) -> LoopPlace:
        """Returns the place after this step."""
        left = [draw for number, draw in enumerate(self._made) if number not in self._trained]
        return LoopPlace(step=step, next_draw=self._next, left=(*left, *self._waiting))
