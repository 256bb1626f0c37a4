"""The example source: draws the examples of each step of a run without episodes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from areal_actors.core.values import Value
from areal_actors.messages import (
    ExamplesDrawn,
    ExamplesDropped,
    RunResumed,
    RunStopping,
    StepCompleted,
    WeightsPublished,
)
from areal_actors.runtime.actor import Actor, on
from areal_actors.tasks.order import Order


class ExamplesState(Value):
    """Snapshot of an example source."""

    length: int
    steps_drawn: int
    steps_taken: int
    stopped: bool


class ExampleSource(Actor):
    """Step n learns from the n-th batch of the seeded order, so repeated draws are identical."""

    state_type = ExamplesState

    def __init__(self, *, examples: int, seed: int, batch_size: int, steps: int) -> None:
        self.order = Order(length=examples, seed=seed)
        self.batch_size = batch_size
        self.steps = steps
        self.steps_drawn = 0
        self.steps_taken = -1
        """Number of completed steps; -1 before the first weights."""
        self.stopped = False

    def snapshot(self) -> ExamplesState:
        """Number of examples, and of steps drawn and completed."""
        return ExamplesState(
            length=self.order.length, steps_drawn=self.steps_drawn, steps_taken=self.steps_taken, stopped=self.stopped
        )

    def restore(self, state: ExamplesState) -> None:
        """Continue from this state."""
        self.order = msgspec.structs.replace(self.order, length=state.length)
        self.steps_drawn, self.steps_taken, self.stopped = state.steps_drawn, state.steps_taken, state.stopped

    @on
    def examples_dropped(self, event: ExamplesDropped) -> None:
        """Published before the first weights."""
        self.order = msgspec.structs.replace(self.order, length=event.left)

    @on
    def weights_published(self, event: WeightsPublished) -> Iterator[ExamplesDrawn]:
        """Draw for the first weights, or for those from which a trainer continues."""
        self.steps_taken = max(event.weight_version, self.steps_taken)
        yield from self._due(event.weight_version)

    @on
    def step_completed(self, event: StepCompleted) -> Iterator[ExamplesDrawn]:
        self.steps_taken = event.step
        yield from self._due(event.step)

    @on
    def run_stopping(self, _: RunStopping) -> None:
        self.stopped = True

    @on
    def run_resumed(self, _: RunResumed) -> Iterator[ExamplesDrawn]:
        """Draw only if no draw is open: an untrained one is in the log, and is delivered to the trainer again."""
        self.stopped = False
        if self.steps_drawn == self.steps_taken:
            yield from self._due(self.steps_taken)

    def _due(self, step: int) -> list[ExamplesDrawn]:
        if self.stopped or step >= self.steps:
            return []
        self.steps_drawn = step + 1
        first = step * self.batch_size
        return [
            ExamplesDrawn(step=step, numbers=self.order.rows(first, self.batch_size), epoch=first // self.order.length)
        ]

    def status(self) -> dict[str, float | str]:
        """Number of steps drawn, and the current epoch."""
        return {"steps_drawn": self.steps_drawn, "epoch": self.steps_drawn * self.batch_size // self.order.length}
