"""Workflows, a client that sets rewards, and the context of the running episode.

They are for agents that need more than a base URL. Names and meanings are those of AReaL. An agent that is a plain
class needs nothing from here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, Protocol

import msgspec
import openai

from areal_actors.core.errors import RewardError
from areal_actors.core.values import Interaction, TokenColumns, Value
from areal_actors.rewards import check_reward
from areal_actors.rollout.episode_context import EpisodeContext, WorkflowContext, workflow_context
from areal_actors.sequences.credit import BranchCredit, discounted_returns

__all__ = [
    "ArealOpenAI",
    "Engine",
    "EpisodeContext",
    "InteractionColumns",
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
    at_end: list[Callable[[], None]]
    """Called after the workflow has returned; one that raises fails the episode."""


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
    follows: tuple[str, ...] = ()
    """Ids of the calls that it continues for credit; empty for its parent only."""


class InteractionColumns(Value):
    """Tokens of a completed call of a running episode, one entry per token in each column."""

    interaction_id: str
    parent: str = ""
    finish_reason: str
    prompt_token_ids: list[int]
    """The whole prompt."""
    token_ids: list[int]
    """Sampled tokens."""
    logprobs: list[float]
    """Natural logarithms, under the sampling temperature."""
    weight_versions: list[int]


class RewardCall(Coroutine[Any, Any, None]):
    """A reward that is set when it is awaited; `check` fails an episode whose agent did not await it."""

    def __init__(self, call: str, sending: Coroutine[Any, Any, None], caller: FrameType) -> None:
        """`call`: name and arguments, as in the caller's code."""
        self._call = f"{call} at {Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        self._sending = sending
        self.awaited = False

    def __await__(self) -> Any:
        self.awaited = True
        return self._sending.__await__()

    def send(self, value: Any) -> Any:
        """See `Coroutine`."""
        self.awaited = True
        return self._sending.send(value)

    # Of the interface
    def throw(self, kind: Any, value: Any = None, traceback: TracebackType | None = None, /) -> Any:  # noqa: ARG002
        """See `Coroutine`."""
        self.awaited = True
        return self._sending.throw(kind if value is None else value)

    def close(self) -> None:
        """See `Coroutine`."""
        self._sending.close()

    def check(self) -> None:
        """Check that it was awaited.

        Raises:
            RewardError: it was not, so the reward was not set.
        """
        if not self.awaited:
            self._sending.close()
            raise RewardError(
                f"{self._call} was not awaited, so this reward was not set; write `await"
                f" client.{self._call.partition('(')[0]}(…)`"
            )


class ArealOpenAI(openai.AsyncOpenAI):
    """The OpenAI client of one episode; it also sets rewards and returns recorded calls.

    Close it, or use `async with`.
    """

    def __init__(self, engine: Engine | None = None, **options: Any) -> None:
        """Connect to this engine; `options` are those of `openai.AsyncOpenAI` and override the defaults."""
        self._rewards: list[RewardCall] = []
        if engine is not None:
            options = {"base_url": engine.base_url, "api_key": engine.api_key, **options}
            getattr(engine, "at_end", []).append(self._check_rewards)
        options.setdefault("max_retries", RETRIES)
        # the episode has its own deadline; a shorter timeout here would send a call again and record two answers
        options.setdefault("timeout", openai.Timeout(None, connect=CONNECT_SECONDS))
        if "http_client" not in options and str(options.get("base_url", "")).startswith("http://"):
            # loading certificates takes 16 ms per client, and plain HTTP does not use them
            options["http_client"] = openai.DefaultAsyncHttpxClient(verify=False, timeout=options["timeout"])
        super().__init__(**options)

    def set_reward(self, interaction_id: str, reward: float, *, role: str = "") -> RewardCall:
        """Set the reward of a completed call, by the `id` of its response, when the result is awaited.

        `role` names the call's role.

        Raises:
            RewardError: the reward is not a finite number; or, at the end of the episode, the result was not awaited.
            openai.APIStatusError: there is no such call, or the session is over.
        """
        return self._reward_call(f"set_reward({interaction_id!r}, {reward!r})", interaction_id, reward, role)

    def set_last_reward(self, reward: float) -> RewardCall:
        """Set the reward of the last completed call when the result is awaited; raises like `set_reward`."""
        return self._reward_call(f"set_last_reward({reward!r})", None, reward)

    def _reward_call(self, call: str, interaction_id: str | None, reward: float, role: str = "") -> RewardCall:
        body = {"interaction_id": interaction_id, "reward": check_reward(reward), **({"role": role} if role else {})}
        # Of the caller
        self._rewards.append(RewardCall(call, self._post_session("set_reward", body), sys._getframe(2)))  # noqa: SLF001
        return self._rewards[-1]

    def _check_rewards(self) -> None:
        """Raise the error of a reward that was not awaited."""
        rewards, self._rewards = self._rewards, []
        for reward in rewards:
            reward.check()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        if exc is not None:  # the agent failed: its error is reported, not that of a reward
            for reward in self._rewards:
                reward.close()
            self._rewards.clear()
        await super().__aexit__(exc_type, exc, exc_tb)

    async def close(self) -> None:
        """Close the connections.

        Raises:
            RewardError: a reward was not awaited, so it was not set.
        """
        await super().close()
        self._check_rewards()

    async def select_trained(self, interaction_ids: Sequence[str]) -> None:
        """Train only these completed calls; the other ones completed so far become context.

        Raises:
            openai.APIStatusError: there is no such call, or the session is over.
        """
        await self._post_session("select_trained", {"interaction_ids": list(interaction_ids)})

    async def _post_session(self, name: str, body: dict[str, Any]) -> None:
        await self.post(f"{self._session()}/rl/{name}", body=body, cast_to=dict[str, Any])

    async def get_tokens(self, interaction_id: str) -> InteractionColumns:
        """Return the tokens of a completed call, as they will be trained.

        Raises:
            openai.APIStatusError: there is no such call, or the session is over.
        """
        query = {"interaction_id": interaction_id}
        interaction = await self.get(
            f"{self._session()}/rl/interaction", cast_to=dict[str, Any], options={"params": query}
        )
        return msgspec.convert(interaction, InteractionColumns)

    async def get_interactions(self) -> list[InteractionSoFar]:
        """Return the calls completed so far, in order of completion, without their tokens."""
        status = await self.get(f"{self._session()}/rl/session", cast_to=dict[str, Any])
        return msgspec.convert(status["interactions"], list[InteractionSoFar])

    async def export_interactions(
        self,
        style: Literal["individual", "concat"] = "individual",
        discount: float = 1.0,
        branch_credit: BranchCredit = "mean",
    ) -> dict[str, InteractionSoFar]:
        """Return the calls completed so far by id, each with the reward that rows exported now would have.

        `individual` returns every call, `concat` only those that no other call continues. A call inherits `discount`
        times the reward of the calls that continue it. Nothing is changed: the trainer assigns credit by its recipe.
        """
        calls = await self.get_interactions()
        rewards = discounted_returns([_as_interaction(call) for call in calls], discount, branch_credit)
        continued = {call.parent for call in calls} if style == "concat" else set()
        return {
            call.id: msgspec.structs.replace(call, reward=rewards[call.id])
            for call in calls
            if call.id not in continued
        }

    def _session(self) -> str:
        return str(self.base_url).rstrip("/").removesuffix("/v1")


def _as_interaction(call: InteractionSoFar) -> Interaction:
    return Interaction(
        id=call.id,
        parent=call.parent,
        follows=call.follows,
        prompt_suffix=b"",
        completion=TokenColumns(),
        finish_reason=call.finish_reason,
        reward=call.reward,
    )
