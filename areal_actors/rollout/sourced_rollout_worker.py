"""The rollout worker of a mixture: every source has its own agent, reward rule and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from areal_actors.messages import EvaluateEpisode, RunEpisode, WorkerLeft
from areal_actors.rollout.rollout_worker import Outcome, Report, RolloutWorker
from areal_actors.runtime.actor import Context, Emits, Submit, on


class SourcedRolloutWorker(RolloutWorker):
    """Passes each episode to the worker of its source.

    Where a source runs fewer episodes at once than the worker takes, the others wait here, before their time limits
    begin.
    """

    def __init__(self, workers: Mapping[str, RolloutWorker]) -> None:
        """`workers`: by source, each as a run of that source alone has it."""
        self.workers = workers
        self.concurrency = max(worker.concurrency for worker in workers.values())
        self._room = {source: asyncio.Semaphore(worker.concurrency) for source, worker in workers.items()}

    @classmethod
    def kind(cls) -> str:
        """Returns the name of every rollout worker."""
        return RolloutWorker.kind()

    async def start(self, submit: Submit) -> None:
        """Load the agents of all sources."""
        for worker in self.workers.values():
            await worker.start(submit)

    async def stop(self) -> None:
        """Stop the agents that still run."""
        for worker in self.workers.values():
            await worker.stop()

    @on
    def gateway_lost(self, event: WorkerLeft) -> None:
        """Stop the agents whose gateway was on a host that is lost."""
        for worker in self.workers.values():
            worker.gateway_lost(event)

    @on
    async def run_episode(self, work: RunEpisode, context: Context) -> Emits[Outcome | Report]:
        """Run the agent of the task's source."""
        source = work.task.source
        async with self._room[source]:
            async for event in self.workers[source].run_episode(work, context):
                yield event

    @on
    async def evaluate_episode(self, held_out: EvaluateEpisode, context: Context) -> Emits[Outcome | Report]:
        """Run the agent of a held-out task's source."""
        async for event in self.workers[held_out.work.task.source].evaluate_episode(held_out, context):
            yield event
