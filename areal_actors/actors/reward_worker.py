"""The reward worker: says what an episode's text was worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.agent_runners.acceptance import Acceptance, describe_session, rewards_set
from areal_actors.errors import RewardError
from areal_actors.messages import DescribeSession, EpisodeAbandoned, EpisodeScored, ScoreEpisode
from bus.errors import BusError


class Scorer(Protocol):
    """Runs the reward function somewhere it can be killed."""

    async def score(self, task: Mapping[str, Any], output: str) -> float:
        """A finite number; raises RewardError when the function raises, hangs, or returns anything else."""
        ...

    async def close(self) -> None:
        """End its processes."""
        ...


class RewardWorker(Actor):
    """A reward function that fails makes an `EpisodeAbandoned`; no reward is invented."""

    asks = (DescribeSession,)

    def __init__(self, scorer: Scorer, *, concurrency: int, acceptance: Acceptance | None = None) -> None:
        self.scorer = scorer
        self.concurrency = concurrency
        self.acceptance = acceptance

    @on
    async def score_episode(self, work: ScoreEpisode, turn: Turn) -> Emits[EpisodeScored | EpisodeAbandoned]:
        try:
            reward = await self.scorer.score(work.work.task.data, work.output)
        except RewardError as error:
            yield EpisodeAbandoned(work=work.work, reason="reward", detail=str(error))
            return
        unwanted = await self._unwanted(work, reward, turn)
        yield unwanted or EpisodeScored(work=work.work, session=work.session, reward=reward, output=work.output)

    async def _unwanted(self, work: ScoreEpisode, reward: float, turn: Turn) -> EpisodeAbandoned | None:
        """How an episode ends that the recipe does not want, None for a wanted one."""
        if self.acceptance is None:
            return None
        try:
            rewards = rewards_set(await describe_session(work.session, turn))
        except BusError as error:
            return EpisodeAbandoned(work=work.work, reason="session", detail=f"the gateway does not say which rewards were set: {error}")
        return await self.acceptance.outcome(work.work, output=work.output, reward=reward, rewards=rewards)

    async def stop(self) -> None:
        """End the scorer's processes."""
        await self.scorer.close()
