"""Reward worker: computes the reward of an episode from its output text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from areal_actors.core.errors import RewardError
from areal_actors.messages import DescribeSession, EpisodeAbandoned, EpisodeScored, Generate, JudgeAnswer, ScoreEpisode
from areal_actors.rewards import Score
from areal_actors.rewards.acceptance import Acceptance, scored_episode
from areal_actors.runtime.actor import Actor, Context, Emits, on
from areal_bus.message import Request

if TYPE_CHECKING:
    from areal_actors.rewards.judge.panel import JudgePanel

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

    asks: ClassVar[tuple[type[Request[Any]], ...]] = (DescribeSession,)

    def __init__(
        self,
        scorer: RewardScorer,
        *,
        concurrency: int,
        acceptance: Acceptance | None = None,
        score_seconds: float = SCORE_SECONDS,
        judges: JudgePanel | None = None,
    ) -> None:
        """`score_seconds`: time limit of a score, with the start of its processes and the wait for a free one.

        `judges` are asked before the scorer, which gets their verdicts beside the task; their time comes on top.
        """
        self.scorer = scorer
        self.judges = judges
        self.score_seconds = score_seconds + (judges.longest_seconds() if judges else 0.0)
        self.concurrency = concurrency
        self.acceptance = acceptance

    @on
    async def score_episode(self, work: ScoreEpisode, context: Context) -> Emits[EpisodeScored | EpisodeAbandoned]:
        try:
            with context.waiting(f"the score of episode {work.work.episode}", self.score_seconds):
                async with asyncio.timeout(self.score_seconds):
                    score, answers = await self._score(work, context)
        except (RewardError, TimeoutError) as error:
            late = f"no score within {self.score_seconds:g} s: {NO_PROCESS}"
            yield EpisodeAbandoned(work=work.work, reason="reward", detail=str(error) or late)
            return
        scored = await scored_episode(work, score, self.acceptance, context)
        yield msgspec.structs.replace(scored, judged=answers) if isinstance(scored, EpisodeScored) else scored

    async def _score(self, work: ScoreEpisode, context: Context) -> tuple[Score, tuple[JudgeAnswer, ...]]:
        """Returns the score, and the answers of judges that it follows from; raises RewardError."""
        if self.judges is None:
            return await self.scorer.score(work.work.task.data, work.output), ()
        judged = await self.judges.judge(work, context)
        score = await self.scorer.score(judged.task, work.output)
        return score.with_metrics({**score.metrics, **judged.metrics}), judged.answers

    async def stop(self) -> None:
        """End the scorer's processes, and the judges' connections."""
        await self.scorer.close()
        if self.judges is not None:
            await self.judges.close()


class JudgingRewardWorker(RewardWorker):
    """A reward worker some of whose judges are the run's own engines."""

    asks = (*RewardWorker.asks, Generate)

    @classmethod
    def kind(cls) -> str:
        """Returns the name of every reward worker."""
        return RewardWorker.kind()
