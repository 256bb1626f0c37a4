"""For agents that want more than an address: workflows, a client that sets rewards, and the episode that is running.

Names and meanings are those that AReaL's users know. Nothing here is needed by an agent that is a plain class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
import openai

from areal_actors.agent_runners.episode_context import EpisodeContext, WorkflowContext, workflow_context
from areal_actors.conversations.credit import BranchCredit, discounted_returns
from areal_actors.rewards import check_reward
from areal_actors.values import Interaction, TokenColumns, Value

__all__ = [
    "ArealOpenAI",
    "Engine",
    "EpisodeContext",
    "InteractionSoFar",
    "RolloutWorkflow",
    "WorkflowContext",
    "workflow_context",
]

RETRIES = 2
"""Of a call that could not connect or was told to come again; one that is answered late is never asked twice."""
CONNECT_SECONDS = 10.0

Result = str | float | Mapping[str, float] | None
"""Text to be scored; a reward for the last completed call, or rewards by interaction id; None where they are set already."""


class Engine(Protocol):
    """What a workflow gets for an episode."""

    base_url: str
    """Of the episode's session: what is called through it is what is trained."""
    api_key: str
    task: dict[str, Any]


class RolloutWorkflow:
    """What happens in an episode; define one of the two methods."""

    async def arun_episode(self, engine: Engine, data: dict[str, Any]) -> Result:
        """Play one episode on this task."""
        if not self.runs_groups:
            raise NotImplementedError(f"{type(self).__name__} must define `async def arun_episode(self, engine, data)`")
        return (await self.arun_group([engine], data))[0]

    async def arun_group(self, engines: Sequence[Engine], data: dict[str, Any]) -> Sequence[Result]:
        """Play all episodes of a task's group, one engine for each; returns their results in the same order."""
        return await asyncio.gather(*(self.arun_episode(engine, data) for engine in engines))

    @property
    def runs_groups(self) -> bool:
        """Whether the workflow plays whole groups; evaluation and episodes that are tried again are groups of one."""
        return type(self).arun_group is not RolloutWorkflow.arun_group


class InteractionSoFar(Value):
    """A completed call of an episode that is still running."""

    id: str
    parent: str = ""
    """Id of the call that it continues; empty at the beginning of a conversation."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    reward: float | None = None


class ArealOpenAI(openai.AsyncOpenAI):
    """The OpenAI client of one episode; it also sets rewards and tells what was recorded. Close it, or use `async with`."""

    def __init__(self, engine: Engine | None = None, **options: Any) -> None:
        """Talk to this engine; `options` are those of `openai.AsyncOpenAI` and hold where they are given."""
        if engine is not None:
            options = {"base_url": engine.base_url, "api_key": engine.api_key, **options}
        options.setdefault("max_retries", RETRIES)
        # the episode has a deadline of its own; a shorter one here would ask the same again and be answered twice
        options.setdefault("timeout", openai.Timeout(None, connect=CONNECT_SECONDS))
        if "http_client" not in options and str(options.get("base_url", "")).startswith("http://"):
            # certificates, which nobody asks for here, take 16 ms to load for every client
            options["http_client"] = openai.DefaultAsyncHttpxClient(verify=False, timeout=options["timeout"])
        super().__init__(**options)

    async def set_reward(self, interaction_id: str, reward: float) -> None:
        """Say what a completed call (the `id` of its response) was worth.

        Raises:
            RewardError: it is no finite number.
            openai.APIStatusError: there is no such call, or the session is over.
        """
        await self._set_reward({"interaction_id": interaction_id, "reward": check_reward(reward)})

    async def set_last_reward(self, reward: float) -> None:
        """Say what the last completed call was worth; raises like `set_reward`."""
        await self._set_reward({"interaction_id": None, "reward": check_reward(reward)})

    async def _set_reward(self, body: dict[str, Any]) -> None:
        await self.post(f"{self._session()}/rl/set_reward", body=body, cast_to=dict[str, Any])

    async def get_interactions(self) -> list[InteractionSoFar]:
        """The completed calls so far, in order of completion, without their tokens."""
        told = await self.get(f"{self._session()}/rl/session", cast_to=dict[str, Any])
        return msgspec.convert(told["interactions"], list[InteractionSoFar])

    async def export_interactions(
        self, style: Literal["individual", "concat"] = "individual", discount: float = 1.0, branch_credit: BranchCredit = "mean"
    ) -> dict[str, InteractionSoFar]:
        """The completed calls so far by id, each with the reward that rows made now would have.

        `individual` tells of every call, `concat` of those that no other continues. `discount` is what a call inherits of
        the reward of those that continue it. Nothing is changed: the trainer takes credit as its recipe says.
        """
        turns = await self.get_interactions()
        worth = discounted_returns([_as_interaction(turn) for turn in turns], discount, branch_credit)
        inner = {turn.parent for turn in turns} if style == "concat" else set()
        return {turn.id: msgspec.structs.replace(turn, reward=worth[turn.id]) for turn in turns if turn.id not in inner}

    def _session(self) -> str:
        return str(self.base_url).rstrip("/").removesuffix("/v1")


def _as_interaction(turn: InteractionSoFar) -> Interaction:
    return Interaction(
        id=turn.id, parent=turn.parent, prompt_suffix=b"", completion=TokenColumns(), finish_reason=turn.finish_reason, reward=turn.reward
    )
