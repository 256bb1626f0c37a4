"""Results that clients fetch later: a request returns an id at once, and `retrieve_future` waits for its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import structlog

from areal_actors.core.errors import CheckpointError, RequestError, UntrainableBatch
from areal_actors.tinker.datums import ForwardOutput, SampleOutput

logger = structlog.get_logger(__name__)

RESULT_SECONDS = 3600.0
"""Time for which a result can be fetched, again, too."""
GAP_SECONDS = 300.0
"""Longest wait of a request for an earlier one that has not arrived."""
USER_ERRORS = (RequestError, CheckpointError, UntrainableBatch)
"""Errors that another request can avoid."""


class RequestFailure(msgspec.Struct, frozen=True):
    """A failed request."""

    error: str
    category: str
    """`user` or `server`."""


CANCELLED = RequestFailure("the request was cancelled", "user")
Result = dict[str, Any] | ForwardOutput | SampleOutput | RequestFailure


class Futures:
    """Requests that run or have ended, by id."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Result]] = {}
        self._ended: dict[str, float] = {}

    def start(self, request_id: str, work: Coroutine[Any, Any, Result]) -> str:
        """Run a request; one with an id that is known already is the client's retry, and is not run again.

        Returns the id.
        """
        self._forget()
        if request_id in self._tasks:
            work.close()
            return request_id
        task = asyncio.create_task(_run(request_id, work))
        self._tasks[request_id] = task

        def end(_: asyncio.Task[Result]) -> None:
            self._ended[request_id] = time.monotonic()
            work.close()  # if the task was cancelled before it began

        task.add_done_callback(end)
        return request_id

    async def result(self, request_id: str, seconds: float) -> Result | None:
        """Returns the result of a request; None if it has none within this time.

        Raises:
            RequestError: there is no such request (any more).
        """
        if request_id not in self._tasks:
            raise RequestError(
                f"there is no request '{request_id}': the server was restarted, or the result is older than"
                f" {RESULT_SECONDS:.0f} s",
                "request_id",
                "not_found",
            )
        task = self._tasks[request_id]
        done, _ = await asyncio.wait([task], timeout=seconds)
        if task.cancelled():
            return CANCELLED
        return task.result() if done else None

    def cancel(self, request_id: str) -> None:
        """Cancel a request, if it runs."""
        if request_id in self._tasks:
            self._tasks[request_id].cancel()

    async def close(self) -> None:
        """Cancel all requests."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _forget(self) -> None:
        """Remove old results."""
        now = time.monotonic()
        for request_id in [request_id for request_id, ended in self._ended.items() if now - ended > RESULT_SECONDS]:
            del self._tasks[request_id], self._ended[request_id]


async def _run(request_id: str, work: Coroutine[Any, Any, Result]) -> Result:
    try:
        return await work
    except asyncio.CancelledError:
        return CANCELLED
    except USER_ERRORS as error:
        return RequestFailure(str(error), "user")
    except Exception as error:
        logger.exception("a request failed", request_id=request_id)
        return RequestFailure(f"{type(error).__name__}: {error}", "server")


class RequestOrder:
    """Runs the requests of a model one at a time, by their numbers, which need not be the order of arrival."""

    def __init__(self, first: int = 1) -> None:
        self._next = first
        self._assigned = first
        self._changed = asyncio.Condition()
        self._busy = False

    def number(self, seq_id: int | None) -> int:
        """Number of a request: the client's, or without one the next in order of arrival."""
        number = self._assigned if seq_id is None else seq_id
        self._assigned = max(self._assigned, number + 1)
        return number

    @asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """Waits until all requests with lower numbers have ended.

        Raises:
            RequestError: one of them does not arrive, or the number was used before.
        """
        async with self._changed:
            while self._next < number:
                await self._wait(number)
            if self._next > number:
                raise RequestError(
                    f"seq_id is {number}, but this model has run up to {self._next - 1}: count requests", "seq_id"
                )
            self._busy = True
        try:
            yield
        finally:
            async with self._changed:
                self._busy, self._next = False, number + 1
                self._changed.notify_all()

    async def _wait(self, number: int) -> None:
        """Wait until a request has ended, or none has for too long."""
        before = self._next
        try:
            async with asyncio.timeout(GAP_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            if not self._busy and self._next == before:
                raise RequestError(
                    f"request {number} of this model waited {GAP_SECONDS:.0f} s for request {before}, which never"
                    " arrived; create another model from a checkpoint",
                    "seq_id",
                ) from None
