"""Runs agents in warm child processes, which serve one episode at a time and are killed with all their descendants."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

from areal_actors.core.agent_host.agent_loader import keyed_url
from areal_actors.core.errors import AgentError, ArealError
from areal_actors.core.proxies import proxy_exceptions
from areal_actors.core.values import Task
from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout.agent_process import AgentProcess, AgentProgram
from areal_actors.rollout.agent_runner import AgentResult, parse_result
from areal_actors.rollout.container_process import ContainerProcess, ContainerProgram
from areal_actors.rollout.episode_context import workflow_context

logger = structlog.get_logger(__name__)


class SubprocessRunner:
    """Keeps `processes` children warm; replaces those that time out, crash, or leave something running."""

    def __init__(self, program: AgentProgram, *, processes: int, episodes_per_process: int = 0) -> None:
        """Start nothing yet; a child is replaced after `episodes_per_process` episodes, never with 0."""
        self.program = program
        self.processes = processes
        self.episodes_per_process = episodes_per_process
        self._idle: asyncio.Queue[AgentProcess | ArealError] = asyncio.Queue()
        self._alive: set[AgentProcess] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start one child and check that it can load the agent; the others start in the background.

        Raises:
            SetupError: the interpreter cannot be started.
            AgentError: the agent cannot be loaded; the message has the reason.
        """
        self._idle.put_nowait(await self._start_process())
        for _ in range(self.processes - 1):
            _run_in_background(self._starting, self._replenish())

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`; cancellation kills the child and its descendants."""
        process = await self._idle_process()
        base_url = process.reach_gateway(base_url)
        environment = {**addresses(base_url, api_key), **workflow_context.get().environment()}
        try:
            returned = await process.run(task.data, base_url=base_url, api_key=api_key, environment=environment)
        except asyncio.CancelledError as error:
            process.retire_reason = "a cancelled episode"
            process.kill()
            error.add_note(process.output_tail())
            raise
        finally:
            self._release(process)
        return parse_result(self.program.name(), returned)

    async def _idle_process(self) -> AgentProcess:
        """An idle child; one that has exited meanwhile is replaced."""
        while True:
            process = await self._idle.get()
            if isinstance(process, ArealError):
                _run_in_background(self._starting, self._replenish())
                raise AgentError(str(process)) from process
            if process.is_running():
                return process
            process.retire_reason = "it exited between two episodes"
            self._release(process)

    def _release(self, process: AgentProcess) -> None:
        if self.episodes_per_process and process.episodes >= self.episodes_per_process:
            process.retire_reason = process.retire_reason or "episodes_per_process reached"
        if not process.retire_reason:
            self._idle.put_nowait(process)
            return
        logger.info("agent process replaced", because=process.retire_reason, episodes=process.episodes)
        self._alive.discard(process)
        _run_in_background(self._ending, process.close())
        _run_in_background(self._starting, self._replenish())

    async def _replenish(self) -> None:
        """Add one child to the idle queue; if its start fails, the next episode gets the error."""
        try:
            self._idle.put_nowait(await self._start_process())
        except ArealError as error:
            self._idle.put_nowait(error)

    async def _start_process(self) -> AgentProcess:
        process = process_of(self.program)
        await process.start()
        self._alive.add(process)
        return process

    def take_blocks(self) -> list[EventLoopBlocked]:
        """Return nothing: children share no event loop."""
        return []

    async def close(self) -> None:
        """Kill all children and wait for their exit."""
        for start in self._starting:
            start.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*self._ending, *(process.close() for process in self._alive))
        self._alive.clear()


def process_of(program: AgentProgram) -> AgentProcess:
    """Returns a process of an agent's program, which is not started yet."""
    return ContainerProcess(program) if isinstance(program, ContainerProgram) else AgentProcess(program)


def _run_in_background(tasks: set[asyncio.Task[None]], coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as a task and keep a reference: asyncio holds tasks weakly."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def addresses(base_url: str, api_key: str) -> Mapping[str, str]:
    """Environment variables from which unmodified clients read the model's address and key.

    The URLs suffice without the key.
    """
    base_url = keyed_url(base_url, api_key)
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": api_key,
        **proxy_exceptions(os.environ, [base_url]),
    }
