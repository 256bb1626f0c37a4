"""Tracks the recovery of a run from its last fault: a fold over its events."""

from __future__ import annotations

from collections import Counter

from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    BatchFormed,
    ExamplesDrawn,
    FaultInjected,
    RunResumed,
    StepCompleted,
)
from bus.message import Message


class Health:
    """A run is healthy if every actor serves, and a step was trained on a batch formed after the last fault."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Actors that have served."""
        self.serving: set[str] = set()
        self.formed = 0
        """Number of batches, or draws of examples."""
        self.steps = 0
        self.recovered_at = 0
        """Step whose completion ends the recovery from the last fault."""
        self.injected: Counter[str] = Counter()
        """Faults by kind, over all launches of the run."""

    def receive(self, message: Message) -> None:
        """Fold an event."""
        match message:
            case ActorStarted():
                self.known.add(message.actor)
                self.serving.add(message.actor)
            case ActorFailed() | ActorStopped():
                self.serving.discard(message.actor)
            case RunResumed():
                self.serving.clear()
                self.recovered_at = max(self.recovered_at, self.steps + 1)
            case BatchFormed() | ExamplesDrawn():
                self.formed = max(self.formed, message.step + 1)
            case StepCompleted():
                self.steps = max(self.steps, message.step)
            case FaultInjected():
                self.injected[message.kind] += 1
                self.recovered_at = self.formed + 1

    def is_healthy(self) -> bool:
        """Returns True if the run has recovered from the last fault."""
        return bool(self.known) and self.known == self.serving and self.steps >= self.recovered_at
