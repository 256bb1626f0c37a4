"""Delivery between senders and receivers in one process: immediate, or with seeded random delays."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")

_DELAY_PROBABILITY = 0.4
"""Probability that an item in flight, or a waiting sender, is delayed by another iteration of the event loop."""


class Lane:
    """A FIFO channel to one receiver."""

    __slots__ = ("deliver", "in_flight")

    def __init__(self, deliver: Callable[[Any], object]) -> None:
        self.deliver = deliver
        self.in_flight: deque[Any] = deque()


class Network:
    """Delivers items to their receivers: at once, or with a seed, delayed and in any order across lanes."""

    def __init__(self, seed: int | None) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._in_flight: list[Lane] = []
        """One entry, the lane, per item in flight."""
        self._rounds = 0

    def send(self, lane: Lane, item: object) -> None:
        """Deliver an item, now or later."""
        if self._random is None:
            lane.deliver(item)
            return
        lane.in_flight.append(item)
        self._in_flight.append(lane)
        asyncio.get_running_loop().call_soon(self._deliver_one)

    def _deliver_one(self) -> None:
        assert self._random is not None
        if self._random.random() < _DELAY_PROBABILITY:
            asyncio.get_running_loop().call_soon(self._deliver_one)
            return
        lanes = self._in_flight
        index = int(self._random.random() * len(lanes))
        lanes[index], lanes[-1] = lanes[-1], lanes[index]
        lane = lanes.pop()
        lane.deliver(lane.in_flight.popleft())

    async def confirm(self) -> None:
        """Wait as long as a server would take to confirm; other tasks run meanwhile."""
        rounds = 1
        while self._random is not None and self._random.random() < _DELAY_PROBABILITY:
            rounds += 1
        for _ in range(rounds):
            await asyncio.sleep(0)

    def pick(self, members: Sequence[Item]) -> Item:
        """Select one member: round-robin, or at random with a seed."""
        if self._random is not None:
            return members[int(self._random.random() * len(members))]
        self._rounds += 1
        return members[self._rounds % len(members)]
