"""The interface of all runners: one call per episode, and the parsing of its return value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from areal_actors.core.errors import AgentError, RewardError
from areal_actors.core.span_rewards import SpanReward
from areal_actors.core.values import Task
from areal_actors.messages import EventLoopBlocked
from areal_actors.rewards import check_reward
from areal_actors.rewards.spans import read_spans
from areal_bus.message import FrozenMeta

LONGEST_OUTPUT = 1_000_000
"""Maximum length of an agent's text in characters; it is sent over the bus to be scored."""


class AgentResult(msgspec.Struct, metaclass=FrozenMeta):
    """Parsed return value of an agent. All fields are empty if it has set its rewards over HTTP."""

    output: str | None = None
    reward: float | None = None
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}
    """Further numbers that the agent reports beside its reward."""
    spans: tuple[SpanReward, ...] = ()
    """Rewards of parts of completions."""


class Cause(str):
    """A note with the cause of an agent's timeout, for which a longer timeout is no remedy."""

    __slots__ = ()


class AgentRunner(Protocol):
    """Runs an agent."""

    async def start(self) -> None:
        """Prepare for the first episode.

        Raises:
            ArealError: the agent cannot be loaded; the message has the reason.
        """
        ...

    async def run(self, task: Task, *, base_url: str, api_key: str) -> AgentResult:
        """Run the agent once; cancellation ends it, and adds notes on the cause of its delay to the `CancelledError`.

        Raises:
            AgentError: the agent raised, ended its process, or returned something other than text or a reward.
            AgentsBlocked: the process must be replaced before another agent can run.
        """
        ...

    def take_blocks(self) -> list[EventLoopBlocked]:
        """Take the reports since the last call of agents that blocked their shared event loop."""
        ...

    async def close(self) -> None:
        """End all running agents."""
        ...


class LoadedRunner:
    """Base of the runners whose agent is loaded when they are made, and whose owner watches the event loop.

    They have nothing to start or end.
    """

    async def start(self) -> None:
        """See `AgentRunner.start`."""

    def take_blocks(self) -> list[EventLoopBlocked]:
        """See `AgentRunner.take_blocks`."""
        return []

    async def close(self) -> None:
        """See `AgentRunner.close`."""


def parse_result(name: str, returned: Any) -> AgentResult:
    """Parse an agent's return value.

    Raises:
        AgentError: it is not text of at most `LONGEST_OUTPUT`, a finite number, finite numbers by interaction id, None,
            or a mapping of `reward` or `rewards`, and `metrics` or `spans`.
    """
    try:
        if returned is None:
            return AgentResult()
        if isinstance(returned, str):
            if len(returned) > LONGEST_OUTPUT:
                raise AgentError(
                    f"agent {name} returned {len(returned):,} characters; return at most {LONGEST_OUTPUT:,}"
                )
            return AgentResult(output=encodable(returned))
        if isinstance(returned, Mapping):
            has_more = isinstance(returned.get("metrics"), Mapping) or isinstance(returned.get("spans"), list | tuple)
            return _with_more(returned) if has_more else AgentResult(rewards=_numbers(returned))
        return AgentResult(reward=check_reward(returned))
    except RewardError as error:
        raise AgentError(f"agent {name} returned {encodable(f'{returned!r:.200}')}: {error}") from error


def _with_more(returned: Mapping[str, Any]) -> AgentResult:
    """Parse {"reward": number} or {"rewards": numbers}, with {"metrics": numbers} or {"spans": [...]} or both."""
    kind = next((key for key in ("reward", "rewards") if set(returned) - {"metrics", "spans"} == {key}), "")
    if not kind or isinstance(returned[kind], Mapping) != (kind == "rewards"):
        raise RewardError(
            "`metrics` and `spans` must stand beside one `reward`, a number, or `rewards`, numbers by interaction id"
        )
    metrics, spans = _numbers(returned.get("metrics", {})), read_spans(returned.get("spans", ()))
    if kind == "reward":
        return AgentResult(reward=check_reward(returned[kind]), metrics=metrics, spans=spans)
    return AgentResult(rewards=_numbers(returned[kind]), metrics=metrics, spans=spans)


def _numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    return {encodable(str(key)): check_reward(value) for key, value in values.items()}


def encodable(text: str) -> str:
    """The text as valid UTF-8: a lone surrogate, as truncated JSON escapes leave behind, becomes a question mark."""
    return text.encode(errors="replace").decode()
