"""Requests from outside of the bus, such as those of HTTP clients: handled in the task that asks, part by part.

No task, queue or message lies between the caller and the handler. A caller that goes away cancels the handler, a
handler that fails is the actor's failure, and an actor that stops ends the callers' waits with `NoResponder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from areal_bus.errors import NoResponder
from areal_bus.message import Message

logger = structlog.get_logger(__name__)


class Submission:
    """The handling of one request in the task that asks, as a context.

    It ends without an error if the actor stops, or if the handler fails, which is the actor's failure.
    """

    __slots__ = ("_cancelled_before", "_submissions", "_task", "is_inside", "is_over")

    def __init__(self, submissions: Submissions) -> None:
        self._submissions = submissions
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelled_before = task, task.cancelling()
        self.is_inside = True
        """True while the handler runs or waits; False while the caller has a part."""
        self.is_over = False
        """True once the actor has stopped."""

    def __enter__(self) -> Self:
        self._submissions.open[self] = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        del self._submissions.open[self]
        if isinstance(error, asyncio.CancelledError):
            return self.is_over and self._task.uncancel() <= self._cancelled_before
        if isinstance(error, Exception):
            self._submissions.note_failure(error)
            return True
        return False

    def end(self) -> None:
        """End the wait; a caller that has a part finds it ended when it asks for the next."""
        self.is_over = True
        if self.is_inside:
            self._task.cancel()


class Submissions:
    """Requests in progress of one actor."""

    def __init__(self, instance: str, on_failure: Callable[[Exception], None]) -> None:
        """`on_failure` is called with the error of a handler."""
        self.instance, self._on_failure = instance, on_failure
        self.open: dict[Submission, None] = {}
        self._are_over = False

    def begin(self, request: Message) -> Submission:
        """Returns the context of a request.

        Raises:
            NoResponder: the actor has stopped, and nothing would end the handler.
        """
        if self._are_over:
            raise self.no_reply(request)
        return Submission(self)

    def no_reply(self, request: Message) -> NoResponder:
        """Returns the error of a request whose handler ended before the last part."""
        return NoResponder(f"{request.subject}: {self.instance} ended before it replied")

    def note_failure(self, error: Exception) -> None:
        """Pass the error of a handler on; the actor may have stopped meanwhile."""
        if self._are_over:
            logger.warning("a request failed while its actor stopped", actor=self.instance, error=repr(error))
        else:
            self._on_failure(error)

    def end(self) -> None:
        """End all waits, since the actor stops, and accept no more requests."""
        self._are_over = True
        for submission in list(self.open):
            submission.end()


async def fail_with(error: Exception) -> None:
    """Raise an error in a task of its own."""
    raise error
