"""Named waits with deadlines, shown in heartbeats."""

from __future__ import annotations

from collections.abc import Callable

from areal_actors.messages import Wait
from areal_bus.message import Message


class NamedWait:
    """Context manager that adds a wait to those of its actor."""

    __slots__ = ("_name", "_now", "_seconds", "_waits")

    def __init__(self, waits: dict[object, Wait], now: Callable[[], float], name: str, seconds: float) -> None:
        self._waits, self._now, self._name, self._seconds = waits, now, name, seconds

    def __enter__(self) -> None:
        since = self._now()
        self._waits[self] = Wait(name=self._name, since=since, deadline=since + self._seconds)

    def __exit__(self, *_: object) -> None:
        del self._waits[self]


def wait_name(request: Message, to: str) -> str:
    """Returns the name of the wait for a reply."""
    return f"{type(request).__name__} from {to or 'any instance'}"
