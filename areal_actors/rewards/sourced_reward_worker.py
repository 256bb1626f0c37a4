"""The reward worker of a mixture: every source has its own reward."""

from __future__ import annotations

from collections.abc import Mapping

from areal_actors.messages import EpisodeAbandoned, EpisodeScored, ScoreEpisode
from areal_actors.rewards.reward_worker import JudgingRewardWorker, RewardWorker
from areal_actors.runtime.actor import Context, Emits, on


class SourcedRewardWorker(RewardWorker):
    """Passes each text to the worker of its source."""

    asks = JudgingRewardWorker.asks

    def __init__(self, workers: Mapping[str, RewardWorker]) -> None:
        """`workers`: by source, each as a run of that source alone has it; without those whose environment scores."""
        self.workers = workers
        self.concurrency = max((worker.concurrency for worker in workers.values()), default=1)

    @classmethod
    def kind(cls) -> str:
        """Returns the name of every reward worker."""
        return RewardWorker.kind()

    @on
    async def score_episode(self, work: ScoreEpisode, context: Context) -> Emits[EpisodeScored | EpisodeAbandoned]:
        """Score a text with the reward of its source."""
        async for event in self.workers[work.work.task.source].score_episode(work, context):
            yield event

    async def stop(self) -> None:
        """End the processes of all rewards."""
        for worker in self.workers.values():
            await worker.stop()
