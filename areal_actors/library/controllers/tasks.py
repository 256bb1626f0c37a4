"""Conversion of tasks of a hand-written loop, and iteration over data loaders."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from areal_actors.core.errors import RolloutError
from areal_actors.core.values import Task

TaskLike = Task | Mapping[str, Any]
"""A dataset's task, or the row passed to the workflow and the reward function."""


def as_task(given: Any, number: int) -> Task:
    """Returns a `Task` unchanged, or a row as a task with its own `id` or this number.

    Raises:
        RolloutError: it is neither.
    """
    if isinstance(given, Task):
        return given
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return Task(id=str(given.get("id", number)), data=dict(given))
    raise RolloutError(
        f"a task is {type(given).__name__} {given!r:.100}; pass a mapping such as {{'question': …}}, or a Task"
    )


class Feed:
    """Iterates over single tasks of an iterator, or repeatedly of an iterable.

    Lists, as from a data loader with a batch size, are flattened.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.taken = 0
        self._unpacked: deque[Any] = deque()
        self._rows: Iterator[Any] = iter(loader)

    def next(self) -> Any | None:
        """Returns the next task; None when an iterator is exhausted. A repeatable iterable ends only if it is empty."""
        while not self._unpacked:
            given = next(self._rows, None)
            if given is None and self._rows is not self.loader:
                self._rows = iter(self.loader)
                given = next(self._rows, None)
            if given is None:
                return None
            self._unpacked.extend(given if isinstance(given, list | tuple) else (given,))
        self.taken += 1
        return self._unpacked.popleft()
