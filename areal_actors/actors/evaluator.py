"""The evaluator: runs held-out tasks at chosen weight versions and says how many were solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from areal_actors.actor import Actor, Emits, on
from areal_actors.config import Config, NonNegativeInt, PositiveInt
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EvaluationCompleted,
    RunEpisode,
    WeightsLoaded,
)
from areal_actors.rewards.gsm8k import shows_work
from areal_actors.values import SamplingParams, Task
from bus.message import FrozenMeta

Mode = Literal["sampled", "greedy"]
SAMPLES_SHOWN = 3
SOLVED_FROM = 0.5
"""A reward from here on counts as solved."""


class EvaluationConfig(Config):
    """`[evaluation]`: held-out accuracy, sampled and greedy, before the first step and after the last."""

    tasks: NonNegativeInt = 200
    """0 evaluates nothing."""
    every_steps: NonNegativeInt = 10
    """Sampled accuracy while training goes on; 0 for before and after only."""
    tasks_between: PositiveInt = 64
    """How many of the tasks then: enough to see the curve, few enough not to slow training."""


class Round(msgspec.Struct, metaclass=FrozenMeta):
    """One evaluation under way."""

    weight_version: int
    mode: Mode
    tasks: int
    results: dict[str, EpisodeEvaluated] = {}
    failed: frozenset[str] = frozenset()

    def is_over(self) -> bool:
        """Every episode has ended."""
        return len(self.results) + len(self.failed) >= self.tasks


class Evaluator(Actor):
    """A version is evaluated when every live inference worker has loaded it; a failed episode counts in neither direction."""

    def __init__(self, config: EvaluationConfig, tasks: Sequence[Task], *, steps: int, sampling: SamplingParams, retries: int) -> None:
        self.config = config
        self.tasks = tasks
        self.steps = steps
        self.sampling = sampling
        self.retries = retries
        self.loaded: dict[str, int] = {}
        self.begun: set[int] = set()
        self.rounds: dict[str, Round] = {}

    @on
    async def weights_loaded(self, event: WeightsLoaded) -> Emits[RunEpisode]:
        self.loaded[event.worker] = max(event.weight_version, self.loaded.get(event.worker, -1))
        for work in self._due():
            yield work

    @on
    async def actor_failed(self, event: ActorFailed) -> Emits[RunEpisode]:
        self.loaded.pop(event.actor, None)
        for work in self._due():
            yield work

    @on
    async def actor_stopped(self, event: ActorStopped) -> Emits[RunEpisode]:
        self.loaded.pop(event.actor, None)
        for work in self._due():
            yield work

    @on
    async def episode_evaluated(self, event: EpisodeEvaluated) -> Emits[EvaluationCompleted]:
        group = self.rounds.get(event.work.group)
        if group is None or event.work.episode in group.failed:
            return
        self.rounds[event.work.group] = msgspec.structs.replace(group, results={**group.results, event.work.episode: event})
        for said in self._completed(event.work.group):
            yield said

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned) -> Emits[EvaluationCompleted]:
        group = self.rounds.get(event.work.group)
        if group is None or event.work.attempts_left > 0 or event.work.episode in group.results:
            return
        self.rounds[event.work.group] = msgspec.structs.replace(group, failed=group.failed | {event.work.episode})
        for said in self._completed(event.work.group):
            yield said

    def _due(self) -> list[RunEpisode]:
        version = min(self.loaded.values(), default=-1)
        every = self.config.every_steps
        due = version in {0, self.steps} or (every and version > 0 and version % every == 0)
        if not due or version in self.begun or not self.tasks:
            return []
        self.begun.add(version)
        modes: tuple[Mode, ...] = ("sampled", "greedy") if version in {0, self.steps} else ("sampled",)
        return [work for mode in modes for work in self._episodes(version, mode)]

    def _episodes(self, version: int, mode: Mode) -> list[RunEpisode]:
        group = f"evaluation-{version}-{mode}"
        tasks = self.tasks if version in {0, self.steps} else self.tasks[: self.config.tasks_between]
        self.rounds[group] = Round(weight_version=version, mode=mode, tasks=len(tasks))
        sampling = self.sampling if mode == "sampled" else msgspec.structs.replace(self.sampling, temperature=0.0)
        return [
            RunEpisode(
                episode=f"{group}.{index}", group=group, attempts_left=self.retries, task=task, purpose="evaluate", sampling=sampling
            )
            for index, task in enumerate(tasks)
        ]

    def _completed(self, group: str) -> list[EvaluationCompleted]:
        round_ = self.rounds[group]
        if not round_.is_over():
            return []
        del self.rounds[group]
        results = sorted(round_.results.values(), key=lambda result: int(result.work.episode.rpartition(".")[2]))
        count = max(len(results), 1)
        return [
            EvaluationCompleted(
                weight_version=round_.weight_version,
                mode=round_.mode,
                tasks=round_.tasks,
                failed=len(round_.failed),
                accuracy=sum(result.reward >= SOLVED_FROM for result in results) / count,
                mean_tokens=sum(result.completion_tokens for result in results) / count,
                worked_share=sum(shows_work(result.output) for result in results) / count,
                samples=tuple(_sample(result) for result in results[:SAMPLES_SHOWN]),
            )
        ]

    def status(self) -> dict[str, float | str]:
        """Evaluations under way."""
        return {name: f"{len(group.results) + len(group.failed)}/{group.tasks}" for name, group in self.rounds.items()}


def _sample(result: EpisodeEvaluated) -> dict[str, Any]:
    return {"task": result.work.task.data, "output": result.output, "reward": result.reward}
