"""What every way of running an agent has in common: one call per episode, and how its return value is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from areal_actors.errors import AgentError, RewardError
from areal_actors.messages import EventLoopBlocked
from areal_actors.rewards import check_reward
from areal_actors.values import Task
from bus.message import FrozenMeta

LONGEST_OUTPUT = 1_000_000
"""Characters of text that an agent may return; what is to be scored travels on the bus."""


class AgentResult(msgspec.Struct, metaclass=FrozenMeta):
    """What an agent returned. All empty: it has set rewards over HTTP."""

    output: str | None = None
    reward: float | None = None
    rewards: dict[str, float] = {}


class Cause(str):
    """A note that explains why an agent did not return in time, so that a longer time would be of no use."""

    __slots__ = ()


class AgentRunner(Protocol):
    """One way to run an agent."""

    async def start(self) -> None:
        """Make everything ready for the first episode.

        Raises:
            ArealError: the agent cannot be had; the message says why.
        """
        ...

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """Run the agent once; cancelling ends it, and notes on the `CancelledError` say what is known of where its time went.

        Raises:
            AgentError: the agent raised, ended its process, or returned what is neither text nor a reward.
            AgentsBlocked: the process has to be replaced before another agent can run.
        """
        ...

    def blocked(self) -> list[EventLoopBlocked]:
        """Take the reports, made since the last call, of agents that blocked the event loop that they share."""
        ...

    async def close(self) -> None:
        """End whatever runs."""
        ...


def parse_result(name: str, returned: Any) -> AgentResult:
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
            return AgentResult(output=encodable(returned))
        if isinstance(returned, Mapping):
            return AgentResult(rewards={encodable(str(key)): check_reward(value) for key, value in returned.items()})
        return AgentResult(reward=check_reward(returned))
    except RewardError as error:
        raise AgentError(f"agent {name} returned {encodable(f'{returned!r:.200}')}: {error}") from error


def encodable(text: str) -> str:
    """The text as it can be sent: half a surrogate pair, as cut JSON escapes leave behind, becomes a question mark."""
    return text.encode(errors="replace").decode()
