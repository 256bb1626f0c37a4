"""The event loop of agents, in its own thread: an agent that blocks it stops only the other agents.

Actors have another loop, so leases, heartbeats and deadlines continue while an agent computes, sleeps or builds a
client.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from areal_actors.rollout.episode_context import workflow_context
from areal_actors.rollout.loop_watch import LoopWatch
from areal_actors.rollout.threads import in_thread

T = TypeVar("T")

CALLBACK_SECONDS = 0.25
"""The loop's clock stops for the time by which uninterrupted callbacks exceed this."""
STOP_SECONDS = 2.0
"""Time limit for agents to end when their loop is stopped."""

_Clock = Callable[[], float]


class _LoopSelector(selectors.DefaultSelector):
    """A selector that records when the loop last returned from waiting."""

    def __init__(self, now: _Clock) -> None:
        super().__init__()
        self._now = now
        self._woke: float | None = now()
        """Time of the last return; None while the loop waits."""
        self._stopped_seconds = 0.0

    def clock(self) -> float:
        """Seconds, without those for which a callback blocked the loop."""
        now, woke = self._now(), self._woke
        return (now if woke is None else min(now, woke + CALLBACK_SECONDS)) - self._stopped_seconds

    def busy_since(self) -> float | None:
        """Time of the last return; None while the loop waits. Thread-safe."""
        return self._woke

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait."""
        if self._woke is not None:
            self._stopped_seconds += max(self._now() - self._woke - CALLBACK_SECONDS, 0.0)
        self._woke = None
        try:
            ready: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        finally:
            self._woke = self._now()
        return ready


class AgentEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stops while an agent blocks it.

    Blocked time does not count towards other agents' timeouts. Otherwise an established connection would time out
    """

    def __init__(self, now: _Clock = time.monotonic) -> None:
        self._waiting = _LoopSelector(now)
        self._connections: WeakSet[asyncio.BaseTransport] = WeakSet()
        super().__init__(self._waiting)

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """Connect; returns transport and protocol."""
        transport, protocol = await super().create_connection(*arguments, **options)
        self._connections.add(transport)
        return transport, protocol

    def busy_since(self) -> float | None:
        """Monotonic time since which callbacks run; None while the loop waits for the next event. Thread-safe."""
        return self._waiting.busy_since()

    def abort_connections(self) -> None:
        """Close all connections at once; one iteration later their sockets are closed."""
        for transport in list(self._connections):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    def time(self) -> float:
        """Seconds on the clock of this loop's timers and timeouts."""
        return self._waiting.clock()


class AgentRun(Generic[T]):
    """A coroutine submitted to the agents' loop; its future `ended` belongs to the caller's loop."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, T]], context: Context) -> None:
        self.context = context
        self.task: asyncio.Task[T] | None = None
        self.cancelled = False
        self.notes: list[str] = []
        """Notes on its `CancelledError`."""
        self._begin = begin
        self._caller_loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[T] = self._caller_loop.create_future()
        self.ended.add_done_callback(_mark_retrieved)

    async def execute(self) -> T:
        """Run the coroutine; on the agents' loop."""
        try:
            return await self._begin()
        except asyncio.CancelledError as error:
            self.notes = list(getattr(error, "__notes__", []))
            raise

    def deliver(self, task: asyncio.Task[T]) -> None:
        """Deliver the result to the caller's loop."""
        with suppress(RuntimeError):  # that loop is closed: no waiter is left
            self._caller_loop.call_soon_threadsafe(_copy_outcome, task, self.ended)

    def cancel(self) -> None:
        """Cancel the run; on the agents' loop."""
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
    """Mark the exception as retrieved: an abandoned agent may raise after its caller has left."""
    if not ended.cancelled():
        ended.exception()


class AgentLoop:
    """The loop, its thread and its watch.

    Agents start one per loop iteration, so that network events are handled in between.
    Otherwise many agents started at once would all compute before the first gets its response.
    """

    def __init__(self) -> None:
        self.loop = AgentEventLoop()
        self.loop.set_task_factory(self._make_task)
        self._episodes: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._waiting: asyncio.Queue[AgentRun[Any]] = asyncio.Queue()
        self._submitted: deque[AgentRun[Any]] = deque()
        self._is_woken = False
        """True while the loop is about to take what was submitted: it is woken once for all of a moment."""
        self._is_stopping = False
        self.thread = threading.Thread(target=self._run, daemon=True, name="agents")
        self.thread.start()
        self.watch = LoopWatch(self.loop, self.thread, self.running_episode, self.loop.busy_since)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        beginning = self.loop.create_task(self._begin())
        try:
            self._run_until_stopped()
        finally:
            rest = {beginning, *asyncio.all_tasks(self.loop)}
            for task in rest:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(rest, timeout=STOP_SECONDS))
            self.loop.run_until_complete(self._close_leaked_clients())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def _run_until_stopped(self) -> None:
        """Run the loop.

        A task that an agent started and that raises `SystemExit` ends that task, not the loop of all agents.
        """
        while not self._is_stopping:
            with suppress(
                SystemExit, KeyboardInterrupt
            ):  # asyncio re-raises these from the loop; the task's awaiter has them, too
                self.loop.run_forever()

    async def _close_leaked_clients(self) -> None:
        """Finalize clients that agents did not close, and close connections of those still in use, as of a module."""
        gc.collect()
        if closing := asyncio.all_tasks(self.loop) - {asyncio.current_task()}:
            done, _ = await asyncio.wait(closing, timeout=STOP_SECONDS)
            for task in done:
                _mark_retrieved(task)  # a client of another loop, which is closed, cannot be closed
        self.loop.abort_connections()
        await asyncio.sleep(0)

    async def _begin(self) -> None:
        while True:
            run = await self._waiting.get()
            if not run.cancelled:
                run.task = self.loop.create_task(run.execute(), context=run.context)
                run.task.add_done_callback(run.deliver)
            await asyncio.sleep(0)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """A task, registered with the episode of its context."""
        task = asyncio.Task(coroutine, loop=loop, context=context)
        if (episode := workflow_context.within(context)) is not None:
            self._episodes[task] = episode.episode
        return task

    def running_episode(self) -> str:
        """The episode whose task is executing; empty if the loop waits or the episode is unknown. Thread-safe."""
        task = asyncio.current_task(self.loop)
        return self._episodes.get(task, "") if task is not None else ""

    def submit(self, run: AgentRun[Any]) -> None:
        """Queue a run; from one other thread, that of its caller."""
        self._submitted.append(run)
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self.loop.call_soon_threadsafe(self._take_submitted)
        except RuntimeError:  # the loop is closed
            self._is_woken = False
            raise

    def _take_submitted(self) -> None:
        self._is_woken = False  # first: what is submitted from here on is taken now, or wakes the loop again
        while self._submitted:
            self._waiting.put_nowait(self._submitted.popleft())

    async def stop(self) -> None:
        """Cancel all tasks and end the thread; a blocked loop is left running until its process exits."""
        self.watch.stop()
        if self.loop.is_closed():
            return
        self._is_stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        await in_thread(self.thread.join, 2 * STOP_SECONDS)
