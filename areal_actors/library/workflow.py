"""For agents that need more than a base URL: workflows, a client that sets rewards, and the context of the running episode.

Names and meanings are those of AReaL. An agent that is a plain class needs nothing from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
import openai

from areal_actors.core.values import Interaction, TokenColumns, Value
from areal_actors.rewards import check_reward
from areal_actors.rollout.episode_context import EpisodeContext, WorkflowContext, workflow_context
from areal_actors.sequences.credit import BranchCredit, discounted_returns

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
"""Retries of a call that could not connect or received a retryable status; a slow call is never sent twice."""
CONNECT_SECONDS = 10.0

Result = str | float | Mapping[str, float] | None
"""Text to score; the reward of the last completed call, or rewards by interaction id; None if they are already set."""


class Engine(Protocol):
    """Access of a workflow to the model and the task of one episode."""

    base_url: str
    """Base URL of the episode's session; the calls made through it are trained."""
    api_key: str
    task: dict[str, Any]


class RolloutWorkflow:
    """Runs episodes; define one of the two methods."""

    async def arun_episode(self, engine: Engine, data: dict[str, Any]) -> Result:
        """Run one episode on this task."""
        if not self.runs_groups:
            raise NotImplementedError(f"{type(self).__name__} must define `async def arun_episode(self, engine, data)`")
        return (await self.arun_group([engine], data))[0]

    async def arun_group(self, engines: Sequence[Engine], data: dict[str, Any]) -> Sequence[Result]:
        """Run all episodes of a task's group, one engine for each; returns their results in the same order."""
        return await asyncio.gather(*(self.arun_episode(engine, data) for engine in engines))

    @property
    def runs_groups(self) -> bool:
        """True if the workflow runs whole groups; evaluation and retried episodes are groups of one."""
        return type(self).arun_group is not RolloutWorkflow.arun_group


class InteractionSoFar(Value):
    """A completed call of a running episode."""

    id: str
    parent: str = ""
    """Id of the call that it continues; empty for the first call of a conversation."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    reward: float | None = None


class ArealOpenAI(openai.AsyncOpenAI):
    """The OpenAI client of one episode; it also sets rewards and returns recorded calls. Close it, or use `async with`."""

    def __init__(self, engine: Engine | None = None, **options: Any) -> None:
        """Connect to this engine; `options` are those of `openai.AsyncOpenAI` and override the defaults."""
        if engine is not None:
            options = {"base_url": engine.base_url, "api_key": engine.api_key, **options}
        options.setdefault("max_retries", RETRIES)
        # the episode has its own deadline; a shorter timeout here would send a call again and record two answers
        options.setdefault("timeout", openai.Timeout(None, connect=CONNECT_SECONDS))
        if "http_client" not in options and str(options.get("base_url", "")).startswith("http://"):
            # loading certificates takes 16 ms per client, and plain HTTP does not use them
            options["http_client"] = openai.DefaultAsyncHttpxClient(verify=False, timeout=options["timeout"])
        super().__init__(**options)

    async def set_reward(self, interaction_id: str, reward: float) -> None:
        """Set the reward of a completed call, by the `id` of its response.

        Raises:
            RewardError: the reward is not a finite number.
            openai.APIStatusError: there is no such call, or the session is over.
        """
        await self._set_reward({"interaction_id": interaction_id, "reward": check_reward(reward)})

    async def set_last_reward(self, reward: float) -> None:
        """Set the reward of the last completed call; raises like `set_reward`."""
        await self._set_reward({"interaction_id": None, "reward": check_reward(reward)})

    async def _set_reward(self, body: dict[str, Any]) -> None:
        await self.post(f"{self._session()}/rl/set_reward", body=body, cast_to=dict[str, Any])

    async def get_interactions(self) -> list[InteractionSoFar]:
        """Return the calls completed so far, in order of completion, without their tokens."""
        status = await self.get(f"{self._session()}/rl/session", cast_to=dict[str, Any])
        return msgspec.convert(status["interactions"], list[InteractionSoFar])

    async def export_interactions(
        self, style: Literal["individual", "concat"] = "individual", discount: float = 1.0, branch_credit: BranchCredit = "mean"
    ) -> dict[str, InteractionSoFar]:
        """Return the calls completed so far by id, each with the reward that rows exported now would have.

        `individual` returns every call, `concat` only those that no other call continues. A call inherits `discount` times
        the reward of the calls that continue it. Nothing is changed: the trainer assigns credit by its recipe.
        """
        calls = await self.get_interactions()
        rewards = discounted_returns([_as_interaction(call) for call in calls], discount, branch_credit)
        continued = {call.parent for call in calls} if style == "concat" else set()
        return {call.id: msgspec.structs.replace(call, reward=rewards[call.id]) for call in calls if call.id not in continued}

    def _session(self) -> str:
        return str(self.base_url).rstrip("/").removesuffix("/v1")


def _as_interaction(call: InteractionSoFar) -> Interaction:
    return Interaction(
        id=call.id, parent=call.parent, prompt_suffix=b"", completion=TokenColumns(), finish_reason=call.finish_reason, reward=call.reward
    )
