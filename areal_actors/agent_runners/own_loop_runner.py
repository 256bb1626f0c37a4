"""Runs agents on an event loop of their own, so that one that blocks it holds up neither leases nor deadlines.

What an agent in another loop is asked: to begin, and to be cancelled. One that cannot be, because it holds the loop or takes no
notice, is left behind. A loop that is not given back serves no further agent: the process fails by name, and a fresh one takes over.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import copy_context

from areal_actors.agent_runners.agent_loop import AgentLoop, AgentRun
from areal_actors.agent_runners.agent_runner import AgentResult, AgentRunner, Cause
from areal_actors.agent_runners.blocked import format_blocked
from areal_actors.agent_runners.loop_watch import LoopWatch
from areal_actors.agent_runners.stack import coroutine_location
from areal_actors.errors import AgentsBlocked
from areal_actors.messages import EventLoopBlocked
from areal_actors.values import Task

END_SECONDS = 5.0
"""For an agent to end when it is cancelled, before it is left behind."""
BLAMED_SHARE = 0.25
"""Of an agent's time: when others held the loop for longer, that is why it did not return."""


class OwnLoopRunner:
    """Runs another runner's agents on a loop and in a thread that exist from `start` to `close`."""

    def __init__(self, runner: AgentRunner) -> None:
        self.runner = runner
        self._agents: AgentLoop | None = None
        self._watch: LoopWatch | None = None
        self._lost = ""
        """Why no further agent can run here; empty while one can."""

    async def start(self) -> None:
        """Start the thread; raises like the runner whose agents run there."""
        self._agents = AgentLoop()
        self._watch = LoopWatch(self._agents.loop, self._agents.thread, self._agents.running_episode)
        await self.runner.start()

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`; one that does not end within `END_SECONDS` of being cancelled is left behind."""
        if self._lost:
            raise AgentsBlocked(self._lost)
        assert self._agents is not None, "start the runner first"
        run: AgentRun[AgentResult] = AgentRun(lambda: self.runner.run(task, base_url=base_url, api_key=api_key), copy_context())
        began = time.monotonic()
        self._agents.submit(run)
        try:
            await asyncio.wait([run.ended])
        except asyncio.CancelledError as error:
            for note in await self._cancelled(run, began, self._agents):
                error.add_note(note)
            raise
        return run.ended.result()

    async def _cancelled(self, run: AgentRun[AgentResult], began: float, agents: AgentLoop) -> list[str]:
        """Cancel an agent, and say what is known of where its time went."""
        at = coroutine_location(run.task.get_coro()) if run.task is not None and agents.running_episode() == "" else None
        agents.loop.call_soon_threadsafe(run.cancel)
        await asyncio.wait([run.ended], timeout=END_SECONDS)
        assert self._watch is not None
        notes: list[str] = []
        blocked = self._watch.since(began)
        if blocked is not None and blocked.seconds > BLAMED_SHARE * (time.monotonic() - began):
            notes.append(Cause(f"meanwhile {format_blocked(blocked)}"))
        if at is not None and at.is_user_code:
            notes.append(f"; it waited at {at.line}")
        if run.ended.done():
            return [*notes, *run.notes]
        if (holding := self._watch.present()) is not None:
            self._lost = f"the event loop of all agents of this process is lost: {format_blocked(holding)}"
        else:
            notes.append(f"; it takes no notice of being cancelled and is left behind after {END_SECONDS:g} s: let CancelledError pass")
        return notes

    def blocked(self) -> list[EventLoopBlocked]:
        """See `AgentRunner.blocked`."""
        return self._watch.reports() if self._watch is not None else []

    async def close(self) -> None:
        """Cancel what runs, and end the thread."""
        if self._agents is None or self._watch is None:
            return
        self._watch.stop()
        await self._agents.stop()
        await self.runner.close()
