"""Runs the user's agent on one task and says what came out: text to be scored, a reward, or an error with a name."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from areal_actors.errors import AgentError, RewardError
from areal_actors.loading import load_named
from areal_actors.rewards import check_reward
from areal_actors.values import Task
from bus.message import FrozenMeta


class AgentResult(msgspec.Struct, metaclass=FrozenMeta):
    """What an agent returned. All empty: it has set rewards over HTTP."""

    output: str | None = None
    reward: float | None = None
    rewards: dict[str, float] = {}


class AgentRunner(Protocol):
    """One way to run an agent."""

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """Run the agent once.

        Raises:
            AgentError: the agent raised, or returned what is neither text nor a reward.
        """
        ...


class InlineRunner:
    """Runs an agent in this process, as a coroutine or (`def run`) in a thread. One agent object serves all episodes."""

    def __init__(self, agent: str, root: Path) -> None:
        self.name = agent
        self.agent = load_named(agent, root)()
        if not callable(getattr(self.agent, "run", None)):
            raise AgentError(f"agent {agent} has no method `run`; write `async def run(self, task, *, base_url, api_key)`")

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """See `AgentRunner.run`."""
        try:
            if inspect.iscoroutinefunction(self.agent.run):
                returned = await self.agent.run(dict(task.data), base_url=base_url, api_key=api_key)
            else:
                returned = await asyncio.to_thread(self.agent.run, dict(task.data), base_url=base_url, api_key=api_key)
        except asyncio.CancelledError as error:
            if (running := asyncio.current_task()) is not None and running.cancelling():
                raise
            raise AgentError(f"agent {self.name} raised {_where(error)}") from error
        except (Exception, SystemExit) as error:  # the agent is the user's code: whatever it raises is its own
            raise AgentError(f"agent {self.name} raised {_where(error)}") from error
        return understood(self.name, returned)


LONGEST_OUTPUT = 1_000_000
"""Characters of text that an agent may return; what is to be scored travels on the bus."""


def understood(name: str, returned: Any) -> AgentResult:
    """An agent's return value as a result.

    Raises:
        AgentError: it is neither text of a bearable length, nor a finite number, nor such numbers by interaction id, nor None.
    """
    try:
        if returned is None:
            return AgentResult()
        if isinstance(returned, str):
            if len(returned) > LONGEST_OUTPUT:
                raise AgentError(f"agent {name} returned {len(returned):,} characters; return at most {LONGEST_OUTPUT:,}")
            return AgentResult(output=_encodable(returned))
        if isinstance(returned, Mapping):
            return AgentResult(rewards={_encodable(str(key)): check_reward(value) for key, value in returned.items()})
        return AgentResult(reward=check_reward(returned))
    except RewardError as error:
        raise AgentError(f"agent {name} returned {_encodable(f'{returned!r:.200}')}: {error}") from error


def _encodable(text: str) -> str:
    """The text as it can be sent: half a surrogate pair, as cut JSON escapes leave behind, becomes a question mark."""
    return text.encode(errors="replace").decode()


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    place = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if len(own) > 1 else ""
    text = _encodable(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else ''}{place}"
