"""What a trainer is built from: the preparation of its engine, and examples in place of episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from areal_actors.engines.base import TrainingEngine
from areal_actors.messages import ExamplesDropped
from areal_actors.values import Row

Progress = Callable[[str, int, int, dict[str, float]], None]
"""(phase, done, total, metrics): how far a long preparation is."""


class EngineFactory(Protocol):
    """Makes or finds the model, and the engine that trains it; slow, runs in a thread."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """Prepare; raises SetupError when the model cannot be had."""
        ...


class ExampleSequences(Protocol):
    """What is learned in a run that has no episodes: examples as rows."""

    def begin(self, model_folder: str) -> ExamplesDropped | None:
        """Write rows for the model in this Hugging Face folder; says which are left out.

        Raises:
            SetupError: it has no tokenizer, or examples are too long for it.
        """
        ...

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """The rows of the examples with these numbers; raises SetupError when one of them cannot be written."""
        ...

    def held_out(self, weight_version: int) -> list[Row]:
        """The rows that this version is measured on; empty when it is not."""
        ...
