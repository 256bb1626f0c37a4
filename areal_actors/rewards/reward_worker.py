"""Reward worker: computes the reward of an episode from its output text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from areal_actors.core.errors import RewardError
from areal_actors.messages import DescribeSession, EpisodeAbandoned, EpisodeScored, ScoreEpisode
from areal_actors.rewards import Score
from areal_actors.rewards.acceptance import Acceptance, scored_episode
from areal_actors.runtime.actor import Actor, Context, Emits, on

SCORE_SECONDS = 600.0
"""Time limit of a score, including the wait for a free process, which the scorer's own limit excludes."""
NO_PROCESS = "the reward's processes do not start or are overloaded (raise actors.reward_worker.count)"


class RewardScorer(Protocol):
    """Runs the reward function where it can be killed."""

    async def score(self, task: Mapping[str, Any], output: str) -> Score:
        """Returns a finite number; raises RewardError when the function raises, hangs, or returns anything else."""
        ...

    async def close(self) -> None:
        """End its processes."""
        ...


class RewardWorker(Actor):
    """Emits `EpisodeScored`, or `EpisodeAbandoned` if the reward function fails; there is no default reward."""

    asks = (DescribeSession,)

    def __init__(
        self,
        scorer: RewardScorer,
        *,
        concurrency: int,
        acceptance: Acceptance | None = None,
        score_seconds: float = SCORE_SECONDS,
    ) -> None:
        """`score_seconds`: time limit of a score, with the start of its processes and the wait for a free one."""
        self.scorer = scorer
        self.score_seconds = score_seconds
        self.concurrency = concurrency
        self.acceptance = acceptance

    @on
    async def score_episode(self, work: ScoreEpisode, context: Context) -> Emits[EpisodeScored | EpisodeAbandoned]:
        try:
            with context.waiting(f"the score of episode {work.work.episode}", self.score_seconds):
                async with asyncio.timeout(self.score_seconds):
                    score = await self.scorer.score(work.work.task.data, work.output)
        except (RewardError, TimeoutError) as error:
            late = f"no score within {self.score_seconds:g} s: {NO_PROCESS}"
            yield EpisodeAbandoned(work=work.work, reason="reward", detail=str(error) or late)
            return
        yield await scored_episode(work, score, self.acceptance, context)

    async def stop(self) -> None:
        """End the scorer's processes."""
        await self.scorer.close()
