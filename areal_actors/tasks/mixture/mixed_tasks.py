"""Tasks of several sources as one sequence of draws, and their held-out tasks in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

import msgspec

from areal_actors.core.values import Task
from areal_actors.tasks.mixture.source_order import SourceOrder


class NumberedTasks(Protocol):
    """A dataset in seeded order: the n-th draw is always the same task."""

    def __len__(self) -> int:
        """Number of draws per epoch."""
        ...

    def task(self, number: int, /) -> Task:
        """Returns the n-th draw, counted from 0, over any number of epochs."""
        ...


class MixedTasks:
    """The draws of a mixture: `order` chooses the source, and each source has an order of its own."""

    def __init__(self, sources: Mapping[str, NumberedTasks], order: SourceOrder) -> None:
        self.sources = sources
        self.order = order

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def task(self, number: int, /) -> Task:
        """Returns the n-th draw of the mixture, counted from 0."""
        draw = self.order.draw(number)
        return of_source(self.sources[draw.source].task(draw.number), draw.source)


def of_source(task: Task, source: str) -> Task:
    """Returns a task under the name of its source: two sources may have the same dataset."""
    return msgspec.structs.replace(task, id=f"{source}/{task.id}", source=source)


def take_in_turn(held_out: Mapping[str, Sequence[Task]]) -> Iterator[Task]:
    """Yields the held-out tasks of all sources, one of each in turn: the first of them are of all sources alike."""
    for row in zip_longest(*held_out.values()):
        yield from (task for task in row if task is not None)
