"""The event loop on which agents run, in a thread of its own: one that blocks it stops its neighbours and nobody else.

Actors have their own loop, so leases, heartbeats and deadlines go on while an agent computes, sleeps or builds a client.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from areal_actors.agent_runners.episode_context import workflow_context
from areal_actors.agent_runners.threads import in_thread

T = TypeVar("T")

CALLBACK_SECONDS = 0.25
"""The loop's clock stands still for what its callbacks take beyond this in a row."""
STOP_SECONDS = 2.0
"""For agents to end when their loop is stopped."""

_Clock = Callable[[], float]


class _LoopSelector(selectors.DefaultSelector):
    """A selector that notes when the loop has last come back from waiting."""

    def __init__(self, now: _Clock) -> None:
        super().__init__()
        self._now = now
        self._woke: float | None = now()
        """None while the loop waits."""
        self._stood_still = 0.0

    def clock(self) -> float:
        """Seconds, without those for which a callback kept the loop from looking."""
        now, woke = self._now(), self._woke
        return (now if woke is None else min(now, woke + CALLBACK_SECONDS)) - self._stood_still

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait."""
        if self._woke is not None:
            self._stood_still += max(self._now() - self._woke - CALLBACK_SECONDS, 0.0)
        self._woke = None
        try:
            ready: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        finally:
            self._woke = self._now()
        return ready


class AgentEventLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while an agent blocks it, so that the timeouts of the others do not count what they could not use.

    Without that, a connection that is there long since has "timed out" when the loop looks at it, because somebody else slept.
    """

    def __init__(self, now: _Clock = time.monotonic) -> None:
        self._waiting = _LoopSelector(now)
        super().__init__(self._waiting)

    def time(self) -> float:
        """Seconds, as timers and timeouts of this loop count them."""
        return self._waiting.clock()


class AgentRun(Generic[T]):
    """A coroutine on its way to the agents' loop, there, and over; its `ended` belongs to the loop of who asked for it."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, T]], context: Context) -> None:
        self.context = context
        self.task: asyncio.Task[T] | None = None
        self.cancelled = False
        self.notes: list[str] = []
        """What was noted on its cancellation."""
        self._begin = begin
        self._asker = asyncio.get_running_loop()
        self.ended: asyncio.Future[T] = self._asker.create_future()
        self.ended.add_done_callback(_mark_retrieved)

    async def execute(self) -> T:
        """Run it; on the agents' loop."""
        try:
            return await self._begin()
        except asyncio.CancelledError as error:
            self.notes = list(getattr(error, "__notes__", []))
            raise

    def deliver(self, task: asyncio.Task[T]) -> None:
        """Hand the result over to the loop of who asked."""
        with suppress(RuntimeError):  # that loop is closed, and nobody waits
            self._asker.call_soon_threadsafe(_copy_outcome, task, self.ended)

    def cancel(self) -> None:
        """End it; on the agents' loop."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


def _copy_outcome(task: asyncio.Task[T], ended: asyncio.Future[T]) -> None:
    if task.cancelled():
        ended.cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


def _mark_retrieved(ended: asyncio.Future[T]) -> None:
    """An agent that was left behind may raise when nobody waits any more."""
    if not ended.cancelled():
        ended.exception()


class AgentLoop:
    """The loop and its thread. Agents begin one after the other, with a look at the network between two of them.

    Many that begin at once would else compute one after the other before the first of them has its answer.
    """

    def __init__(self) -> None:
        self.loop = AgentEventLoop()
        self.loop.set_task_factory(self._make_task)
        self._episodes: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._waiting: asyncio.Queue[AgentRun[Any]] = asyncio.Queue()
        self.thread = threading.Thread(target=self._run, daemon=True, name="agents")
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        beginning = self.loop.create_task(self._begin())
        try:
            self.loop.run_forever()
        finally:
            rest = {beginning, *asyncio.all_tasks(self.loop)}
            for task in rest:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(rest, timeout=STOP_SECONDS))
            self.loop.run_until_complete(self._close_leaked_clients())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def _close_leaked_clients(self) -> None:
        """Let clients that agents did not close be finalized while their loop can close their connections."""
        gc.collect()
        if closing := asyncio.all_tasks(self.loop) - {asyncio.current_task()}:
            await asyncio.wait(closing, timeout=STOP_SECONDS)

    async def _begin(self) -> None:
        while True:
            run = await self._waiting.get()
            if not run.cancelled:
                run.task = self.loop.create_task(run.execute(), context=run.context)
                run.task.add_done_callback(run.deliver)
            await asyncio.sleep(0)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None) -> asyncio.Task[Any]:
        """A task that is known to be part of the episode in whose context it is made."""
        task = asyncio.Task(coroutine, loop=loop, context=context)
        if (episode := workflow_context.within(context)) is not None:
            self._episodes[task] = episode.episode
        return task

    def running_episode(self) -> str:
        """The episode that computes at this moment; empty where the loop waits, or it is not known. From any thread."""
        task = asyncio.current_task(self.loop)
        return self._episodes.get(task, "") if task is not None else ""

    def submit(self, run: AgentRun[Any]) -> None:
        """Put a run in line; from any thread."""
        self.loop.call_soon_threadsafe(self._waiting.put_nowait, run)

    async def stop(self) -> None:
        """Cancel what runs and end the thread; a loop that is blocked is left behind, and ends with its process."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        await in_thread(self.thread.join, 2 * STOP_SECONDS)
