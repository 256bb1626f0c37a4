"""Tests without waiting: an event loop's time that jumps to the next timer, and a bounded wait for what sends no
notification."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class JumpingSelector:
    """A loop's selector that never sleeps until a timer: if no socket is ready, the loop's time moves to that timer
    instead.

    Without a timer it waits, so threads and sockets can wake the loop. With one it does not wait for them: a test whose
    tasks need an answer from a thread or a process before a timer is due belongs on real time.
    """

    def __init__(self, selector: Any, now: float) -> None:
        self._selector = selector
        self._now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def time(self) -> float:
        """Seconds, like `asyncio.AbstractEventLoop.time`; they pass only by jumps."""
        return self._now

    def select(self, timeout: float | None = None) -> Any:
        """Ready sockets, at once; without any, time moves by `timeout` seconds. None waits for a socket."""
        ready = self._selector.select(timeout if timeout is None else 0)
        if not ready and timeout:
            self._now += timeout
        return ready


@contextlib.contextmanager
def jumping_time() -> Iterator[None]:
    """Time of the running event loop jumps to the next timer whenever every task waits; a deadline of hours takes no
    time."""
    loop: Any = asyncio.get_running_loop()
    selector = loop._selector
    loop._selector = JumpingSelector(selector, loop.time())
    loop.time = loop._selector.time
    try:
        yield
    finally:
        loop._selector = selector
        del loop.time


async def until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Wait until the condition holds, for what another thread, process or server changes.

    Raises:
        TimeoutError: it did not hold within `seconds`.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nothing in this loop is notified
            await asyncio.sleep(0.005)
