"""The actors that run and score the episodes of a hand-written loop, in its own process."""

from __future__ import annotations

from pathlib import Path

from areal_actors.library.controllers.workflows import Workflows
from areal_actors.processes.actor_host import ActorHost
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.tensor_process import TORCH_ACTORS
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards.acceptance import Acceptance
from areal_actors.rewards.bounded_rule import bounded_rule
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.rollout_worker import RolloutWorker

WORKER = "rollout_worker-0"


async def serve_episode_workers(
    host: ActorHost, recipe: Recipe, workflows: Workflows, root: Path, *, slots: int
) -> None:
    """Serve a rollout worker that runs the episodes of these workflows, `slots` at once, and a reward worker."""
    task = recipe.task
    acceptance = Acceptance(workflows.accepts, root, retry=task.retry_rejected)
    reward_worker = TORCH_ACTORS["reward_worker"](
        BuildContext(recipe=recipe, folder=host.folder, instance="reward_worker-0")
    )
    assert isinstance(reward_worker, RewardWorker)
    reward_worker.acceptance = acceptance
    await host.serve("reward_worker-0", reward_worker)
    worker = RolloutWorker(
        workflows,
        concurrency=slots,
        timeout_seconds=task.timeout_seconds,
        rule=bounded_rule(task.reward),
        acceptance=acceptance,
        retry_rejected=task.retry_rejected,
    )
    await host.serve(WORKER, worker)
