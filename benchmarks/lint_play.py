"""A small run in this process.

All actors of a recipe on a bus in memory, with the embedded model and the gateway over HTTP.
They are those of `areal-actors run`, which starts them in processes of their own; the reward function is called here,
too, without one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal_actors.folder.run_folder import RunFolder
from areal_actors.lint.fault import LearningFault
from areal_actors.lint.run_lint import RunLint
from areal_actors.messages import (
    KINDS,
    EpisodeAbandoned,
    FilterExhausted,
    RunStarted,
    StepCompleted,
    TrainingHalted,
    TrajectoryExported,
)
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.process import actors_of_process
from areal_actors.processes.tensor_process import TORCH_ACTORS
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import Score, resolve_reward
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rewards.scored import check_value, score_output
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus import Stamp
from areal_bus.memory import MemoryBus

LONGEST_SECONDS = 1200.0
"""Time limit of a run, on a busy machine."""
LEFT_OUT = ("metrics", "checkpointer", "evaluator", "example_source")
BY_SUBJECT = {kind.subject: kind for kind in KINDS}


@dataclass
class Played:
    """Outcome of a run."""

    faults: list[LearningFault] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """Rewards of its exported episodes."""
    abandoned: int = 0
    """Attempts that failed."""
    steps: int = 0


class DirectScorer:
    """Calls a reward function in this process."""

    def __init__(self, recipe: Recipe) -> None:
        self.name = recipe.task.reward
        self.function = resolve_reward(self.name, Path.cwd(), recipe.task.reward_options)

    async def score(self, task: Mapping[str, Any], output: str) -> Score:
        """Returns the checked value."""
        score, failure = score_output(self.function, dict(task), output)
        return check_value(self.name, task, score, failure)

    async def close(self) -> None:
        """There is nothing to close."""


def play(recipe: Recipe) -> Played:
    """Play a run until its last step, or until it would end early."""
    folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
    folder.create(recipe)
    return asyncio.run(asyncio.wait_for(_play(recipe, folder), LONGEST_SECONDS))


async def _play(recipe: Recipe, folder: RunFolder) -> Played:
    bus = MemoryBus(recipe.run, lease_seconds=LONGEST_SECONDS)
    served: list[Runtime] = []
    serving: list[asyncio.Task[None]] = []
    for process in dict.fromkeys(getattr(recipe.actors, name).process for name in recipe.actors.__struct_fields__):
        for instance, kind in actors_of_process(recipe, process).items():
            if kind not in LEFT_OUT:
                actor = _actor(kind, BuildContext(recipe=recipe, folder=folder, instance=instance, process=process))
                served.append(Runtime(actor, bus, Identity(instance=instance, process=process, seed=recipe.seed)))
                serving.append(asyncio.create_task(served[-1].serve()))
    following = asyncio.create_task(_follow(bus, recipe))
    try:
        await asyncio.wait(
            {asyncio.gather(*(runtime.ready.wait() for runtime in served)), *serving},
            return_when=asyncio.FIRST_COMPLETED,
        )
        started = RunStarted(recipe={}, profile="", reason="", folder=str(folder.path))
        await bus.publish(started, Stamp(id="start", sender="run", time=time.time()))
        await asyncio.wait({following, *serving}, return_when=asyncio.FIRST_COMPLETED)
        for task in serving:
            if task.done():
                task.result()  # raises what ended the actor
        return following.result()
    finally:
        for task in (following, *serving):
            task.cancel()
        await asyncio.gather(following, *serving, return_exceptions=True)


def _actor(kind: str, context: BuildContext) -> Actor:
    if kind == "reward_worker":
        return RewardWorker(DirectScorer(context.recipe), concurrency=context.recipe.actors.reward_worker.concurrency)
    return TORCH_ACTORS[kind](context)


async def _follow(bus: MemoryBus, recipe: Recipe) -> Played:
    """Fold the log with the lint of the run."""
    lint, played = RunLint(recipe, "areal-actors show"), Played()
    failed = 0
    async for envelope in bus.log(follow=True):
        message = envelope.open(BY_SUBJECT[envelope.subject])
        lint.receive(message)
        match message:
            case StepCompleted():
                played.steps = message.step
            case TrajectoryExported():
                failed = 0
                played.rewards.append(message.trajectory.reward)
            case EpisodeAbandoned() if message.reason not in {"rejected", "surplus"}:
                failed += 1
                played.abandoned += 1
        is_over = (
            isinstance(message, FilterExhausted | TrainingHalted) or failed >= recipe.watchdog.max_failures_in_a_row
        )
        if is_over or played.steps == recipe.steps:
            lint.conclude()
            played.faults = lint.faults
            return played
    raise AssertionError("the log of a run does not end")
