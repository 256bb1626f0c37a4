"""Requests from outside of the bus, such as those of HTTP clients: handled in the task that asks, part by part.

No task, queue or message lies between the caller and the handler. A caller that goes away cancels the handler, a
handler that fails is the actor's failure, and an actor that stops ends the callers' waits with `NoResponder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from areal_bus.errors import NoResponder
from areal_bus.message import Reply, Request

R = TypeVar("R", bound=Reply)


class _Wait:
    """The task that asks."""

    is_inside = True
    """True while the handler runs or waits; False while the caller has a part."""
    is_over = False
    """True once the actor has stopped."""

    def __init__(self) -> None:
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.cancelled_before = self.task.cancelling()

    def end(self) -> None:
        """End the wait; a caller that has a part finds it ended when it asks for the next."""
        self.is_over = True
        if self.is_inside:
            self.task.cancel()


class Submissions:
    """Requests in progress of one actor."""

    def __init__(self, instance: str, on_failure: Callable[[Exception], None]) -> None:
        """`on_failure` is called with the error of a handler."""
        self.instance, self._on_failure = instance, on_failure
        self._waits: dict[_Wait, None] = {}

    async def ask(self, request: Request[R], replies: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
        """Yield the parts of the reply, and the last one after its handler has ended.

        Raises:
            NoResponder: the handler ended before the last part, or failed, or its actor stopped.
        """
        self._waits[wait := _Wait()] = None
        last: R | None = None
        try:
            async with aclosing(replies):
                async for part in replies:
                    if part.is_last():
                        last = part
                    elif last is None:
                        wait.is_inside = False
                        yield part
                        wait.is_inside = True
                        if wait.is_over:
                            break
        except asyncio.CancelledError:
            if not wait.is_over or wait.task.uncancel() > wait.cancelled_before:
                raise
        except Exception as error:  # noqa: BLE001 - the actor's failure, which ends its runtime
            self._on_failure(error)
        finally:
            del self._waits[wait]
        if last is None:
            raise NoResponder(f"{request.subject}: {self.instance} ended before it replied")
        yield last

    def end(self) -> None:
        """End all waits, since the actor stops."""
        for wait in list(self._waits):
            wait.end()


async def fail_with(error: Exception) -> None:
    """Raise an error in a task of its own."""
    raise error
