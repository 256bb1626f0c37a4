"""What a loop may hand in as tasks, and where the tasks of a data loader went on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from areal_actors.errors import RolloutError
from areal_actors.values import Task

TaskLike = Task | Mapping[str, Any]
"""A dataset's task, or the row that the workflow and the reward function see."""


def as_task(given: Any, number: int) -> Task:
    """A `Task` as it is; a row becomes one, under its own `id` or this number.

    Raises:
        RolloutError: it is neither.
    """
    if isinstance(given, Task):
        return given
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return Task(id=str(given.get("id", number)), data=dict(given))
    raise RolloutError(f"a task is {type(given).__name__} {given!r:.100}; hand in a mapping such as {{'question': …}}, or a Task")


class Feed:
    """Tasks one by one, from an iterator or from anything that can be iterated over again and again.

    What comes in lists, as from a data loader with a batch size, is taken apart.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.taken = 0
        self._unpacked: deque[Any] = deque()
        self._rows: Iterator[Any] = iter(loader)

    def next(self) -> Any | None:
        """The next task; None when an iterator has given all it had. What can be iterated over again ends only if it is empty."""
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
