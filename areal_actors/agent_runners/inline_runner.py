"""Runs agents in this process, as coroutines or (`def run`) in threads. One agent object serves all episodes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from areal_actors.agent_host.faults import Refused, format_error
from areal_actors.agent_host.naming import make_agent, run_function
from areal_actors.agent_runners.agent_runner import AgentResult, parse_result
from areal_actors.agent_runners.threads import in_thread
from areal_actors.errors import AgentError
from areal_actors.loading import load_named
from areal_actors.messages import EventLoopBlocked
from areal_actors.values import Task

T = TypeVar("T")


def load_agent(agent: str, root: Path, options: Mapping[str, Any]) -> Any:
    """The agent of that name, with these keyword arguments where it is a class.

    Raises:
        RecipeError: there is nothing of that name.
        AgentError: the options do not fit, or its class raises.
    """
    try:
        return make_agent(load_named(agent, root), agent, options)
    except Refused as error:
        raise AgentError(str(error)) from error


async def guarded(name: str, returning: Awaitable[T]) -> T:
    """What the agent's code returns.

    Raises:
        AgentError: it raised; the message says what and where.
    """
    try:
        return await returning
    except asyncio.CancelledError as error:
        if (running := asyncio.current_task()) is not None and running.cancelling():
            raise
        raise AgentError(f"agent {name} raised {format_error(error)}") from error
    except AgentError:
        raise
    except (Exception, SystemExit) as error:  # the agent is the user's code: whatever it raises is its own
        raise AgentError(f"agent {name} raised {format_error(error)}") from error


class InlineRunner:
    """An agent that is made already."""

    def __init__(self, agent: Any, name: str) -> None:
        """Take an agent; errors call it by this name.

        Raises:
            AgentError: it has nothing to run.
        """
        self.name = name
        try:
            self._runs = run_function(agent, name)
        except Refused as error:
            raise AgentError(str(error)) from error

    @classmethod
    def named(cls, agent: str, root: Path, options: Mapping[str, Any] | None = None) -> InlineRunner:
        """An agent by its name in the recipe; raises like `load_agent` too."""
        return cls(load_agent(agent, root, options or {}), agent)

    async def start(self) -> None:
        """The agent is there already."""

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`; a thread cannot be ended, only no longer waited for."""
        return await guarded(self.name, self._result(dict(task.data), base_url, api_key))

    async def _result(self, task: dict[str, Any], base_url: str, api_key: str) -> AgentResult:
        if inspect.iscoroutinefunction(self._runs):
            returned = self._runs(task, base_url=base_url, api_key=api_key)
        else:
            returned = await in_thread(self._runs, task, base_url=base_url, api_key=api_key)
        return parse_result(self.name, await returned if inspect.isawaitable(returned) else returned)

    def blocked(self) -> list[EventLoopBlocked]:
        """Whoever has the loop watches it."""
        return []

    async def close(self) -> None:
        """Nothing is left to end."""
