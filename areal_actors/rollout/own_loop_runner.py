"""Runs agents on a separate event loop, so that an agent that blocks it delays neither leases nor deadlines.

An agent that cannot be cancelled, because it blocks the loop or ignores the cancellation, is abandoned. A loop that
stays blocked serves no further agent: the process fails with the reason, and a new one takes over.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import copy_context

from areal_actors.core.errors import AgentError, AgentsBlocked
from areal_actors.core.values import Task
from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout.agent_loop import AgentLoop, AgentRun
from areal_actors.rollout.agent_runner import AgentResult, AgentRunner, Cause
from areal_actors.rollout.blocked import format_blocked
from areal_actors.rollout.stack import coroutine_location

END_SECONDS = 5.0
"""Time limit for a cancelled agent to end before it is abandoned."""
BLAMED_SHARE = 0.25
"""Share of an agent's time: a longer block of the loop is the cause of its timeout."""


class OwnLoopRunner:
    """Runs another runner's agents on a loop in a thread, from `start` to `close`."""

    def __init__(self, runner: AgentRunner) -> None:
        self.runner = runner
        self._agents: AgentLoop | None = None
        self._lost = ""
        """Reason why no further agent can run here; empty while one can."""

    async def start(self) -> None:
        """Start the thread; raises like the wrapped runner."""
        self._agents = AgentLoop()
        await self.runner.start()

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`; one that does not end within `END_SECONDS` of its cancellation is abandoned."""
        if self._lost:
            raise AgentsBlocked(self._lost)
        assert self._agents is not None, "start the runner first"
        run: AgentRun[AgentResult] = AgentRun(
            lambda: self.runner.run(task, base_url=base_url, api_key=api_key), copy_context()
        )
        began = time.monotonic()
        self._agents.submit(run)
        try:
            await asyncio.wait([run.ended])
        except asyncio.CancelledError as error:
            for note in await self._cancel(run, began, self._agents):
                error.add_note(note)
            raise
        try:
            return run.ended.result()
        except GeneratorExit as error:  # raised by the agent itself: no generator of this task ends
            raise AgentError("the agent raised GeneratorExit") from error

    async def _cancel(self, run: AgentRun[AgentResult], began: float, agents: AgentLoop) -> list[str]:
        """Cancel an agent; returns notes on the cause of its delay."""
        at = (
            coroutine_location(run.task.get_coro()) if run.task is not None and agents.running_episode() == "" else None
        )
        agents.loop.call_soon_threadsafe(run.cancel)
        await asyncio.wait([run.ended], timeout=END_SECONDS)
        notes: list[str] = []
        blocked = agents.watch.since(began)
        if blocked is not None and blocked.seconds > BLAMED_SHARE * (time.monotonic() - began):
            notes.append(Cause(f"meanwhile {format_blocked(blocked)}"))
        if at is not None and at.is_user_code:
            notes.append(f"; it waited at {at.line}")
        if run.ended.done():
            return [*notes, *run.notes]
        if (holding := agents.watch.present()) is not None:
            self._lost = f"the event loop of all agents of this process is lost: {format_blocked(holding)}"
        else:
            notes.append(
                f"; it takes no notice of being cancelled and is left behind after {END_SECONDS:g} s: let"
                " CancelledError pass"
            )
        return notes

    def take_blocks(self) -> list[EventLoopBlocked]:
        """See `AgentRunner.take_blocks`."""
        return self._agents.watch.reports() if self._agents is not None else []

    async def close(self) -> None:
        """Cancel running agents, and end the thread."""
        if self._agents is not None:
            if not self._lost and not self._agents.loop.is_closed():
                closing: AgentRun[None] = AgentRun(self.runner.close, copy_context())  # its clients belong to that loop
                self._agents.submit(closing)
                await asyncio.wait([closing.ended], timeout=END_SECONDS)
            await self._agents.stop()
