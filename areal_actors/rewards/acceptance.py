"""Accepts or rejects scored episodes for training by a function of the user."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.agent_host.faults import format_error
from areal_actors.core.errors import AgentError, RecipeError
from areal_actors.core.gateways import gateway_of_session
from areal_actors.core.loading import load_named
from areal_actors.messages import (
    DescribeSession,
    EpisodeAbandoned,
    EpisodeScored,
    RunEpisode,
    ScoreEpisode,
    SessionDescribed,
)
from areal_actors.rewards import Score
from areal_actors.runtime.actor import Context
from areal_bus.errors import BusError

ASK_SECONDS = 10.0
"""Timeout for the session manager to describe a session."""


async def describe_session(session: str, context: Context, document: str | None = None) -> SessionDescribed:
    """The session's state: its calls, the rewards set over HTTP, and unanswered requests.

    It has, too, if the model wrote the `document`.

    Raises:
        BusError: the session manager does not answer.
    """
    question, gateway = DescribeSession(session=session, document=document), gateway_of_session(session)
    return await context.ask(question, timeout=ASK_SECONDS, to=gateway, retry_for_seconds=ASK_SECONDS)


def rewards_set(described: SessionDescribed) -> dict[str, float]:
    """Rewards that an agent has set over HTTP, by interaction id; empty for a session that is over."""
    return {call.id: call.reward for call in described.interactions if call.reward is not None}


def rejected_event(work: RunEpisode, detail: str, *, retry: bool) -> EpisodeAbandoned:
    """The end of a rejected episode; it is retried only with `retry`, while attempts are left."""
    work = work if retry else msgspec.structs.replace(work, attempts_left=0)
    return EpisodeAbandoned(work=work, reason="rejected", detail=detail)


class Acceptance:
    """`should_accept(episode) -> bool`.

    An episode for which it returns False is abandoned as `rejected`, not as a failure.
    """

    def __init__(self, wanted: str | Callable[[dict[str, Any]], Any], root: Path, *, retry: bool) -> None:
        """Load the function if given by name; with `retry`, rejected episodes are retried while attempts are left.

        Raises:
            RecipeError: there is no such function.
        """
        self.spec = spec = wanted if isinstance(wanted, str) else "should_accept"
        self.retry = retry
        self.function = load_named(wanted, root) if isinstance(wanted, str) else wanted
        if not callable(self.function):
            raise RecipeError(
                f"`task.should_accept`: `{spec}` is not a function; write `def should_accept(episode) -> bool`"
            )

    async def outcome(
        self, work: RunEpisode, *, output: str | None = None, reward: float | None = None, rewards: Mapping[str, float]
    ) -> EpisodeAbandoned | None:
        """None for an accepted or held-out episode; otherwise its end.

        The function gets {"task_id", "task", "episode", "group", "attempt", "output", "reward", "rewards"}; `output` is
        None if the agent returned no text, `reward` is None if it returned no number; `rewards` has the rewards by
        interaction id, including those set over HTTP.
        """
        if work.purpose == "evaluate":
            return None
        episode = {
            "task_id": work.task.id,
            "task": dict(work.task.data),
            "episode": work.episode,
            "group": work.group,
            "attempt": work.attempt,
            "output": output,
            "reward": reward,
            "rewards": dict(rewards),
        }
        try:
            accepted = await self._call_function(episode)
        except AgentError as error:
            return EpisodeAbandoned(work=work, reason="agent", detail=str(error))
        if accepted:
            return None
        return rejected_event(work, f"{self.spec} does not accept it", retry=self.retry)

    async def _call_function(self, episode: dict[str, Any]) -> bool:
        try:
            answer = self.function(episode)
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is None:
                raise AgentError(f"task.should_accept: {self.spec} returned None; return True or False")
            return bool(answer)
        except (AgentError, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # the function is the user's and may raise anything
            raise AgentError(f"task.should_accept: {self.spec} raised {format_error(error)}") from error


async def scored_episode(
    work: ScoreEpisode, score: Score, acceptance: Acceptance | None, context: Context
) -> EpisodeScored | EpisodeAbandoned:
    """Returns the end of an episode whose output has this score: its reward, or that the recipe does not accept it."""
    scored = EpisodeScored(
        work=work.work,
        session=work.session,
        reward=float(score),
        metrics=dict(score.metrics),
        output=work.output,
        spans=score.spans,
        places=dict(score.places),
    )
    if acceptance is None:
        return scored
    try:
        rewards = rewards_set(await describe_session(work.session, context))
    except BusError as error:
        return EpisodeAbandoned(
            work=work.work, reason="session", detail=f"the gateway did not report which rewards were set: {error}"
        )
    return await acceptance.outcome(work.work, output=work.output, reward=float(score), rewards=rewards) or scored
