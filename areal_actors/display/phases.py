"""Phases of a run besides its steps.

The start, preparation of the model, inference servers and evaluations, with the time left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from areal_actors.messages import (
    EngineStarting,
    EvaluationCompleted,
    Heartbeat,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrainerProgress,
    WeightsLoaded,
    WeightsPublished,
)
from areal_bus.message import Message

START = "start of the processes"
LOADING = "loading of the weights"
SERVER = "inference server"
EVALUATION = "evaluation"
"""Names of phases: the last is followed by its step, as in `evaluation at step 40`; those of the trainer are its
own."""


@dataclass(eq=False)
class Phase:
    """A phase that has begun."""

    name: str
    since: float
    """Seconds since the epoch, as all times here."""
    done: int = 0
    """Units that are done, of `total`."""
    total: int = 0
    """0 if the phase has no units."""
    at_first: int = 0
    """Units that were done when the first ones were reported, at the time `counted_since`."""
    counted_since: float = 0.0
    detail: str = ""

    def count(self, done: int, total: int, time: float) -> None:
        """Set the units that are done."""
        if not self.total:
            self.at_first, self.counted_since = done, time
        self.done, self.total = done, total

    def seconds_left(self, now: float, usual: float | None) -> float | None:
        """Returns the estimated time left: by its pace, else by its usual duration; None if neither is known."""
        if self.total and self.done > self.at_first and now > self.counted_since:
            return (now - self.counted_since) * (self.total - self.done) / (self.done - self.at_first)
        return None if usual is None else max(usual - (now - self.since), 0.0)


@dataclass(eq=False)
class Phases:
    """A fold over the messages of a run."""

    usual: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase in an earlier run."""
    current: dict[str, Phase] = field(default_factory=dict)
    """Phases that go on, by name, the oldest first."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each phase that is over."""
    _trainer: str = ""
    """The trainer's present phase."""
    _evaluated: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Units done, and of how many, of each group of the evaluation that goes on."""

    def seconds_left(self, phase: Phase, now: float) -> float | None:
        """Returns the estimated time left of a phase."""
        return phase.seconds_left(now, self.usual.get(phase.name))

    def receive(self, message: Message, time: float) -> None:  # noqa: C901 - a table of one or two lines each
        """Fold a message that was sent at this time."""
        match message:
            case RunStarted() | RunResumed():
                self.current.clear()
                self._begin(START, time)
            case TrainerProgress():
                self._prepares(message, time)
            case WeightsPublished():
                self._end(START, time)
                self._end(self._trainer, time)
                if START in self.seconds and LOADING not in self.seconds:
                    self._begin(LOADING, time)
            case EngineStarting():
                self._begin(f"{SERVER} of {message.worker}", time - message.seconds).detail = message.phase
            case WeightsLoaded():
                self._end(LOADING, time)
                self._end(f"{SERVER} of {message.worker}", time)
            case Heartbeat() if message.actor.startswith("evaluator"):
                self._evaluates(message.status, time)
            case EvaluationCompleted():
                self._evaluated[f"evaluation-{message.weight_version}-{message.mode}"] = (message.tasks, message.tasks)
                self._count_evaluation(message.weight_version, time)
            case StepCompleted():
                for name in (START, LOADING, self._trainer):
                    self._end(name, time)
            case RunFinished():
                self.current.clear()

    def _prepares(self, message: TrainerProgress, time: float) -> None:
        self._end(START, time)
        if message.phase != self._trainer:
            self._end(self._trainer, time)
            self._trainer = message.phase
        phase = self._begin(message.phase, time)
        phase.detail = " · ".join(f"{name} {value:.3g}" for name, value in message.metrics.items())
        if message.total:
            phase.count(message.done, message.total, time)

    def _evaluates(self, status: Mapping[str, float | str], time: float) -> None:
        """Take `evaluation-VERSION-MODE` with DONE/ALL from the evaluator's status."""
        versions = set()
        for name, value in status.items():
            kind, _, rest = name.partition("-")
            done, slash, total = str(value).partition("/")
            if kind == EVALUATION and slash:
                self._evaluated[name] = (int(done), int(total))
                versions.add(int(rest.partition("-")[0]))
        for version in versions:
            self._count_evaluation(version, time)

    def _count_evaluation(self, version: int, time: float) -> None:
        name = f"{EVALUATION} at step {version}" if version else f"{EVALUATION} before step 1"
        of_it = {group: units for group, units in self._evaluated.items() if group.startswith(f"evaluation-{version}-")}
        done, total = (sum(units) for units in zip(*of_it.values(), strict=True))
        if done < total:
            self._begin(name, time).count(done, total, time)
        else:
            self._end(name, time)
            self._evaluated = {group: units for group, units in self._evaluated.items() if group not in of_it}

    def _begin(self, name: str, time: float) -> Phase:
        """Returns the phase, which is made if it is not going on."""
        return self.current.setdefault(name, Phase(name, time))

    def _end(self, name: str, time: float) -> None:
        if (ended := self.current.pop(name, None)) is not None:
            self.seconds[name] = time - ended.since
