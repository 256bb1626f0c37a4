"""What lies between sender and receiver in one process: nothing, or the caprices of a seed."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")

_LATER = 0.4
"""Chance that what is in flight, or a sender who waits, is kept for another turn of the event loop."""


class Lane:
    """The way to one receiver; items arrive in the order they were sent."""

    __slots__ = ("arrive", "in_flight")

    def __init__(self, arrive: Callable[[Any], object]) -> None:
        self.arrive = arrive
        self.in_flight: deque[Any] = deque()


class Wire:
    """Carries items to their receivers: at once, or with a seed, late and in any order over all lanes."""

    def __init__(self, seed: int | None) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._flights: list[Lane] = []
        """The lane of every item in flight."""
        self._turns = 0

    def send(self, lane: Lane, item: object) -> None:
        """Let an item arrive sooner or later."""
        if self._random is None:
            lane.arrive(item)
            return
        lane.in_flight.append(item)
        self._flights.append(lane)
        asyncio.get_running_loop().call_soon(self._land_one)

    def _land_one(self) -> None:
        assert self._random is not None
        if self._random.random() < _LATER:
            asyncio.get_running_loop().call_soon(self._land_one)
            return
        flights = self._flights
        place = int(self._random.random() * len(flights))
        flights[place], flights[-1] = flights[-1], flights[place]
        lane = flights.pop()
        lane.arrive(lane.in_flight.popleft())

    async def confirm(self) -> None:
        """A server takes its time to confirm what it was sent; others go on meanwhile."""
        turns = 1
        while self._random is not None and self._random.random() < _LATER:
            turns += 1
        for _ in range(turns):
            await asyncio.sleep(0)

    def pick(self, members: Sequence[Item]) -> Item:
        """One of several who could do it: in turn, or by the seed."""
        if self._random is not None:
            return members[int(self._random.random() * len(members))]
        self._turns += 1
        return members[self._turns % len(members)]
