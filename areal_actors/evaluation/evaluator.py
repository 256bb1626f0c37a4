"""The evaluator: runs held-out tasks at selected weight versions and publishes accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from areal_actors.core.config import Config, NonNegativeInt, PositiveInt
from areal_actors.core.values import SamplingParams, Task, Value
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    EvaluateEpisode,
    EvaluationCompleted,
    RunEpisode,
    RunResumed,
    RunStopping,
    WeightsLoaded,
)
from areal_actors.runtime.actor import Actor, Context, on
from areal_actors.sequences.step_metrics import mean_metrics, source_metric
from areal_actors.tasks.attempts import Attempt, Attempts, first_attempt
from areal_bus.message import FrozenMeta

Mode = Literal["sampled", "greedy"]
SAMPLES_SHOWN = 3
SOLVED_FROM = 0.5
"""Minimum reward of a solved task."""


class EvaluationConfig(Config):
    """`[evaluation]`: held-out accuracy, sampled and greedy, before the first step and after the last."""

    tasks: NonNegativeInt = 200
    """Number of held-out tasks; 0 disables evaluation."""
    every_steps: NonNegativeInt = 10
    """Interval between evaluations during training; 0 evaluates only before and after."""
    periodic_tasks: PositiveInt = 64
    """Number of tasks during training: enough for a curve, few enough not to slow training."""
    periodic_mode: Mode = "sampled"
    """Sampling mode during training."""
    periodic_exact: bool = True
    """With `staleness_gate.max_staleness = 0` the next step waits for evaluations during training, so that one version
    answers all tasks, reproducibly for a seed. With staleness training does not wait."""
    max_concurrent: PositiveInt = 16
    """Maximum number of concurrent held-out episodes during training; before and after, the rollout workers are the
    limit."""
    baseline: Literal["before", "concurrent", "none"] = "before"
    """Evaluation of the initial model: `before` the first step, which waits for it, so that it is exactly version 0;
    `concurrent` training, concurrently; or `none`."""


class Round(msgspec.Struct, metaclass=FrozenMeta):
    """Held-out tasks in one sampling mode: the evaluation of a version has one or two rounds."""

    weight_version: int
    mode: Mode
    tasks: int
    results: dict[str, EpisodeEvaluated] = {}
    failed: frozenset[str] = frozenset()

    def has(self, episode: str) -> bool:
        """True if the episode has ended."""
        return episode in self.results or episode in self.failed

    def is_over(self) -> bool:
        """True if every episode has ended."""
        return len(self.results) + len(self.failed) >= self.tasks


class EvaluatorState(Value):
    """Snapshot of an evaluator."""

    loaded: dict[str, int]
    begun: int
    rounds: dict[str, Round]
    waiting: tuple[RunEpisode, ...]
    attempts: dict[str, Attempt]
    stopped: bool
    held: tuple[EvaluateEpisode, ...]


class Evaluator(Actor):
    """Evaluates a version when every live inference worker has loaded it; failed episodes do not count in the accuracy.

    Training does not wait: held-out episodes have their own queue and limit, and `sampled_by` reports tokens of
    versions published meanwhile. Only one evaluation runs at a time; one that becomes due meanwhile starts after it, at
    the version loaded then.
    """

    state_type = EvaluatorState
    state_version = 2

    def __init__(
        self,
        config: EvaluationConfig,
        tasks: Sequence[Task],
        *,
        steps: int,
        sampling: SamplingParams,
        retries: int,
        sampling_by_source: Mapping[str, SamplingParams] | None = None,
    ) -> None:
        """`sampling_by_source`: sampling parameters of the sources of a mixture."""
        self.config = config
        self.tasks = tasks
        self.steps = steps
        self.sampling = sampling
        self.sampling_by_source = sampling_by_source or {}
        self.retries = retries
        self.loaded: dict[str, int] = {}
        self.begun = -1
        """Version of the last evaluation; -1 before the first."""
        self.rounds: dict[str, Round] = {}
        self.waiting: tuple[RunEpisode, ...] = ()
        self.attempts = Attempts()

    def snapshot(self) -> EvaluatorState:
        """Loaded version of each worker, and progress of the current evaluation."""
        return EvaluatorState(
            loaded=dict(self.loaded),
            begun=self.begun,
            rounds=dict(self.rounds),
            waiting=self.waiting,
            attempts=dict(self.attempts.latest),
            stopped=self.attempts.stopped,
            held=tuple(map(_evaluate_held_out, self.attempts.held)),
        )

    def restore(self, state: EvaluatorState) -> None:
        """Continue from this state."""
        self.loaded, self.begun, self.rounds, self.waiting = (
            dict(state.loaded),
            state.begun,
            dict(state.rounds),
            state.waiting,
        )
        self.attempts = Attempts(dict(state.attempts), [again.work for again in state.held], state.stopped)

    @on
    def weights_loaded(self, event: WeightsLoaded, context: Context) -> Iterator[EvaluateEpisode]:
        self.loaded[event.worker] = max(event.weight_version, self.loaded.get(event.worker, -1))
        yield from self._advance(context)

    @on
    def actor_gone(self, event: ActorFailed | ActorStopped, context: Context) -> Iterator[EvaluateEpisode]:
        self.loaded.pop(event.actor, None)
        yield from self._advance(context)

    @on
    def run_stopping(self, _: RunStopping) -> None:
        self.attempts.stopped = True

    @on
    def run_resumed(self, event: RunResumed, context: Context) -> Iterator[EvaluateEpisode]:
        """Publish held attempts, and again those that the work queue has lost."""
        yield from map(
            _evaluate_held_out,
            self.attempts.resumed_attempts(event, context.sequence, self.kind(), self._first_attempt),
        )
        yield from self._advance(context)

    def _first_attempt(self, episode: str) -> RunEpisode:
        group, _, index = episode.rpartition(".")
        return self._work(group, self.rounds[group].mode, int(index))

    @on
    def episode_scored(self, event: EpisodeScored) -> None:
        self.attempts.record_score(event.work)

    @on
    def episode_evaluated(
        self, event: EpisodeEvaluated, context: Context
    ) -> Iterator[EvaluationCompleted | EvaluateEpisode]:
        group, episode = self.rounds.get(event.work.group), event.work.episode
        if group is None or group.has(episode):
            return
        yield from self._end_episode(
            event.work, msgspec.structs.replace(group, results={**group.results, episode: event}), context
        )

    @on
    def episode_abandoned(
        self, event: EpisodeAbandoned, context: Context
    ) -> Iterator[EvaluationCompleted | EvaluateEpisode]:
        """Retry while attempts are left; an attempt reported lost by two actors is retried once."""
        work, group = event.work, self.rounds.get(event.work.group)
        latest = self.attempts.latest.get(work.episode)
        if group is None or group.has(work.episode) or (latest is not None and work.attempt < latest.number):
            return
        if work.attempts_left:
            yield from map(_evaluate_held_out, self.attempts.next_attempts(work, context.sequence))
        else:
            yield from self._end_episode(
                work, msgspec.structs.replace(group, failed=group.failed | {work.episode}), context
            )

    def _end_episode(
        self, work: RunEpisode, group: Round, context: Context
    ) -> Iterator[EvaluationCompleted | EvaluateEpisode]:
        self.attempts.remove_episode(work.episode)
        if group.is_over():
            del self.rounds[work.group]
            yield _complete_group(group, self._common())
        else:
            self.rounds[work.group] = group
        yield from self._advance(context)

    def _advance(self, context: Context) -> Iterator[EvaluateEpisode]:
        """Start a due evaluation, and as many episodes as the limit allows."""
        version = min(self.loaded.values(), default=-1)
        if not self.rounds and self._is_due(version):
            self.waiting = tuple(self._episodes(version))
            self.begun = version
        room = (
            len(self.waiting)
            if self._has_workers_to_itself(version)
            else self.config.max_concurrent - len(self.attempts.latest)
        )
        if self.attempts.stopped or room <= 0:
            return
        starting, self.waiting = self.waiting[:room], self.waiting[room:]
        for work in starting:
            yield EvaluateEpisode(work=self.attempts.record_start(work, context.sequence))

    def _is_due(self, version: int) -> bool:
        if self.attempts.stopped or not self.tasks or version <= self.begun:
            return False
        if version == 0:
            return self.config.baseline != "none"
        every = self.config.every_steps
        return version >= self.steps or (every > 0 and version // every > max(self.begun, 0) // every)

    def _has_workers_to_itself(self, version: int) -> bool:
        return version >= self.steps or (self.begun == 0 and self.config.baseline == "before")

    def _is_whole(self, version: int) -> bool:
        return version == 0 or version >= self.steps

    def _common(self) -> int:
        """Returns the number of tasks that every evaluation has."""
        return min(self.config.periodic_tasks, len(self.tasks)) if self.config.every_steps else len(self.tasks)

    def _episodes(self, version: int) -> Iterator[RunEpisode]:
        modes: tuple[Mode, ...] = ("sampled", "greedy") if self._is_whole(version) else (self.config.periodic_mode,)
        tasks = self.tasks if self._is_whole(version) else self.tasks[: self._common()]
        for mode in modes:
            group = f"evaluation-{version}-{mode}"
            self.rounds[group] = Round(weight_version=version, mode=mode, tasks=len(tasks))
            for index in range(len(tasks)):
                yield self._work(group, mode, index)

    def _work(self, group: str, mode: Mode, index: int) -> RunEpisode:
        task = self.tasks[index]
        sampling = self.sampling_by_source.get(task.source, self.sampling)
        if mode == "greedy":
            sampling = msgspec.structs.replace(sampling, temperature=0.0)
        return first_attempt(group, index, task, sampling, self.retries, purpose="evaluate")

    def status(self) -> dict[str, float | str]:
        """Progress of the current evaluation."""
        return {name: f"{len(group.results) + len(group.failed)}/{group.tasks}" for name, group in self.rounds.items()}


def _evaluate_held_out(work: RunEpisode) -> EvaluateEpisode:
    return EvaluateEpisode(work=work)


def _complete_group(group: Round, common: int) -> EvaluationCompleted:
    numbered = sorted(
        ((int(name.rpartition(".")[2]), result) for name, result in group.results.items()), key=lambda pair: pair[0]
    )
    results = [result for _, result in numbered]
    sampled_by: Counter[int] = Counter()
    for result in results:
        sampled_by.update(result.sampled_by)
    return EvaluationCompleted(
        weight_version=group.weight_version,
        mode=group.mode,
        tasks=group.tasks,
        failed=len(group.failed),
        accuracy=_mean([result.reward >= SOLVED_FROM for result in results]),
        mean_tokens=_mean([result.completion_tokens for result in results]),
        reward_metrics=mean_metrics([_metrics_of(result) for result in results]),
        samples=tuple(_sample(result) for result in results[:SAMPLES_SHOWN]),
        reward_mean=_mean([result.reward for result in results]),
        common_reward_mean=_mean([result.reward for number, result in numbered if number < common]),
        sampled_by=dict(sorted(sampled_by.items())),
        ended_by_model=_mean([result.ended_by == "model" for result in results]),
    )


def _metrics_of(result: EpisodeEvaluated) -> dict[str, float]:
    """Returns the numbers of a held-out episode, with its reward under the name of its source."""
    source = result.work.task.source
    return {**result.metrics, source_metric(source): result.reward} if source else result.metrics


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _sample(result: EpisodeEvaluated) -> dict[str, Any]:
    return {"task": result.work.task.data, "output": result.output, "reward": result.reward}
