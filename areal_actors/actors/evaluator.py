"""The evaluator: runs held-out tasks at chosen weight versions and says how many were solved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from areal_actors.actor import Actor, Emits, Turn, on
from areal_actors.actors.attempts import Attempt, lost_attempts, mark_scored
from areal_actors.config import Config, NonNegativeInt, PositiveInt
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
from areal_actors.rewards.gsm8k import shows_work
from areal_actors.values import SamplingParams, Task, Value
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
    """Accuracy while training goes on; 0 for before and after only."""
    tasks_between: PositiveInt = 64
    """How many of the tasks then: enough to see the curve, few enough not to slow training."""
    mode_between: Mode = "sampled"
    """How they are answered then."""
    exact_between: bool = True
    """With `staleness_gate.max_staleness = 0` the next step waits for them, so that they are answered by one version, and alike in
    every run of a seed. With staleness training does not wait."""
    max_concurrent: PositiveInt = 16
    """Held-out episodes at once while training goes on; before and after it as many as the rollout workers take."""
    baseline: Literal["before", "beside", "none"] = "before"
    """The evaluation of the model as it was: `before` the first step, which waits for it, so that it is of version 0 exactly;
    `beside` training; or `none`."""


class Round(msgspec.Struct, metaclass=FrozenMeta):
    """Held-out tasks answered in one mode: the evaluation of a version has one or two."""

    weight_version: int
    mode: Mode
    tasks: int
    results: dict[str, EpisodeEvaluated] = {}
    failed: frozenset[str] = frozenset()

    def has(self, episode: str) -> bool:
        """Whether the episode has ended."""
        return episode in self.results or episode in self.failed

    def is_over(self) -> bool:
        """Every episode has ended."""
        return len(self.results) + len(self.failed) >= self.tasks


class EvaluatorState(Value):
    """What a snapshot has."""

    loaded: dict[str, int]
    begun: int
    rounds: dict[str, Round]
    waiting: tuple[RunEpisode, ...]
    attempts: dict[str, Attempt]
    stopped: bool
    held: tuple[EvaluateEpisode, ...]


class Evaluator(Actor):
    """A version is evaluated when every live inference worker has loaded it; a failed episode counts in neither direction.

    Training does not wait: held-out episodes have a queue and a bound of their own, and what else was sampled from versions
    published meanwhile is said. One evaluation is under way at a time; one that falls due meanwhile begins after it, at the
    version that there is then.
    """

    state_type = EvaluatorState
    state_version = 2

    def __init__(self, config: EvaluationConfig, tasks: Sequence[Task], *, steps: int, sampling: SamplingParams, retries: int) -> None:
        self.config = config
        self.tasks = tasks
        self.steps = steps
        self.sampling = sampling
        self.retries = retries
        self.loaded: dict[str, int] = {}
        self.begun = -1
        """The version evaluated last."""
        self.rounds: dict[str, Round] = {}
        self.waiting: tuple[RunEpisode, ...] = ()
        self.attempts: dict[str, Attempt] = {}
        """The latest of each episode that runs."""
        self.stopped = False
        self.held: list[EvaluateEpisode] = []
        """Lost since the run was asked to end; tried again if it goes on."""

    def snapshot(self) -> EvaluatorState:
        """Which versions are loaded where, and how far the evaluation under way is."""
        return EvaluatorState(
            loaded=dict(self.loaded),
            begun=self.begun,
            rounds=dict(self.rounds),
            waiting=self.waiting,
            attempts=dict(self.attempts),
            stopped=self.stopped,
            held=tuple(self.held),
        )

    def restore(self, state: EvaluatorState) -> None:
        """Go on from there."""
        self.loaded, self.begun, self.rounds, self.waiting = dict(state.loaded), state.begun, dict(state.rounds), state.waiting
        self.attempts, self.stopped, self.held = dict(state.attempts), state.stopped, list(state.held)

    @on
    async def weights_loaded(self, event: WeightsLoaded, turn: Turn) -> Emits[EvaluateEpisode]:
        self.loaded[event.worker] = max(event.weight_version, self.loaded.get(event.worker, -1))
        for work in self._moves(turn):
            yield work

    @on
    async def actor_failed(self, event: ActorFailed, turn: Turn) -> Emits[EvaluateEpisode]:
        self.loaded.pop(event.actor, None)
        for work in self._moves(turn):
            yield work

    @on
    async def actor_stopped(self, event: ActorStopped, turn: Turn) -> Emits[EvaluateEpisode]:
        self.loaded.pop(event.actor, None)
        for work in self._moves(turn):
            yield work

    @on
    async def run_stopping(self, _: RunStopping) -> None:
        self.stopped = True

    @on
    async def run_resumed(self, event: RunResumed, turn: Turn) -> Emits[EvaluateEpisode]:
        """Publish what was held back, and again what the queue of work has lost."""
        self.stopped = False
        held, self.held = {again.work.episode: again for again in self.held}, []
        missing = [self._again(*attempt) for attempt in lost_attempts(self.attempts, event, self.kind()) if attempt[0] not in held]
        for again in (*held.values(), *missing):
            self.attempts[again.work.episode] = Attempt(number=again.work.attempt, after=turn.sequence)
            yield again
        for again in self._moves(turn):
            yield again

    def _again(self, episode: str, attempt: int) -> EvaluateEpisode:
        name, _, index = episode.rpartition(".")
        work = self._work(name, self.rounds[name].mode, int(index))
        return EvaluateEpisode(work=msgspec.structs.replace(work, attempt=attempt, attempts_left=max(self.retries + 1 - attempt, 0)))

    @on
    async def episode_scored(self, event: EpisodeScored) -> None:
        mark_scored(self.attempts, event.work)

    @on
    async def episode_evaluated(self, event: EpisodeEvaluated, turn: Turn) -> Emits[EvaluationCompleted | EvaluateEpisode]:
        group, episode = self.rounds.get(event.work.group), event.work.episode
        if group is None or group.has(episode):
            return
        for said in self._ended(event.work, msgspec.structs.replace(group, results={**group.results, episode: event}), turn):
            yield said

    @on
    async def episode_abandoned(self, event: EpisodeAbandoned, turn: Turn) -> Emits[EvaluationCompleted | EvaluateEpisode]:
        """Try again while attempts are left; the same attempt may be reported lost by two actors, and is tried again once."""
        work, group = event.work, self.rounds.get(event.work.group)
        latest = self.attempts.get(work.episode)
        if group is None or group.has(work.episode) or (latest is not None and work.attempt < latest.number):
            return
        if work.attempts_left:
            self.attempts[work.episode] = Attempt(number=work.attempt + 1, after=turn.sequence)
            again = EvaluateEpisode(work=msgspec.structs.replace(work, attempt=work.attempt + 1, attempts_left=work.attempts_left - 1))
            if self.stopped:
                self.held.append(again)
            else:
                yield again
        else:
            for said in self._ended(work, msgspec.structs.replace(group, failed=group.failed | {work.episode}), turn):
                yield said

    def _ended(self, work: RunEpisode, group: Round, turn: Turn) -> Iterator[EvaluationCompleted | EvaluateEpisode]:
        self.attempts.pop(work.episode, None)
        if group.is_over():
            del self.rounds[work.group]
            yield _completed(group, self._common())
        else:
            self.rounds[work.group] = group
        yield from self._moves(turn)

    def _moves(self, turn: Turn) -> Iterator[EvaluateEpisode]:
        """Begin what is due, and as many episodes as the bound allows."""
        version = min(self.loaded.values(), default=-1)
        if not self.rounds and self._is_due(version):
            self.waiting = tuple(self._episodes(version))
            self.begun = version
        room = len(self.waiting) if self._has_workers_to_itself(version) else self.config.max_concurrent - len(self.attempts)
        if self.stopped or room <= 0:
            return
        starting, self.waiting = self.waiting[:room], self.waiting[room:]
        for work in starting:
            self.attempts[work.episode] = Attempt(number=work.attempt, after=turn.sequence)
            yield EvaluateEpisode(work=work)

    def _is_due(self, version: int) -> bool:
        if self.stopped or not self.tasks or version <= self.begun:
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
        """Tasks of every evaluation."""
        return min(self.config.tasks_between, len(self.tasks)) if self.config.every_steps else len(self.tasks)

    def _episodes(self, version: int) -> Iterator[RunEpisode]:
        modes: tuple[Mode, ...] = ("sampled", "greedy") if self._is_whole(version) else (self.config.mode_between,)
        tasks = self.tasks if self._is_whole(version) else self.tasks[: self._common()]
        for mode in modes:
            group = f"evaluation-{version}-{mode}"
            self.rounds[group] = Round(weight_version=version, mode=mode, tasks=len(tasks))
            for index in range(len(tasks)):
                yield self._work(group, mode, index)

    def _work(self, group: str, mode: Mode, index: int) -> RunEpisode:
        sampling = self.sampling if mode == "sampled" else msgspec.structs.replace(self.sampling, temperature=0.0)
        return RunEpisode(
            episode=f"{group}.{index}",
            group=group,
            attempts_left=self.retries,
            task=self.tasks[index],
            purpose="evaluate",
            sampling=sampling,
        )

    def status(self) -> dict[str, float | str]:
        """Evaluations under way."""
        return {name: f"{len(group.results) + len(group.failed)}/{group.tasks}" for name, group in self.rounds.items()}


def _completed(group: Round, common: int) -> EvaluationCompleted:
    numbered = sorted(((int(name.rpartition(".")[2]), result) for name, result in group.results.items()), key=lambda pair: pair[0])
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
        worked_share=_mean([shows_work(result.output) for result in results]),
        samples=tuple(_sample(result) for result in results[:SAMPLES_SHOWN]),
        reward_mean=_mean([result.reward for result in results]),
        common_reward_mean=_mean([result.reward for number, result in numbered if number < common]),
        sampled_by=dict(sorted(sampled_by.items())),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _sample(result: EpisodeEvaluated) -> dict[str, Any]:
    return {"task": result.work.task.data, "output": result.output, "reward": result.reward}
