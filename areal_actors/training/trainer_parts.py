"""Protocols of the trainer's dependencies: the factory of its engine, and examples in place of episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from areal_actors.core.values import Row
from areal_actors.messages import ExamplesDropped
from areal_actors.training.engine import TrainingEngine

Progress = Callable[[str, int, int, dict[str, float]], None]
"""(phase, done, total, metrics): progress of a long preparation."""


class EngineFactory(Protocol):
    """Creates or finds the model, and makes the engine that trains it; slow, runs in a thread."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """Make the engine; raises SetupError if the model is not available."""
        ...


class ExampleSequences(Protocol):
    """Training data of a run without episodes: examples as rows."""

    def begin(self, model_folder: str) -> ExamplesDropped | None:
        """Prepare rows for the model in this Hugging Face folder; returns which examples are dropped.

        Raises:
            SetupError: it has no tokenizer, or examples are too long for it.
        """
        ...

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """Rows of the examples with these numbers; raises SetupError if one cannot be converted."""
        ...

    def held_out(self, weight_version: int) -> list[Row]:
        """Rows for the evaluation of this version; empty if it is not evaluated."""
        ...
