"""Protocols of what the trainer depends on.

Its engine, which holds all tensor computation, and examples in place of episodes.
Engines never use the bus. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from areal_actors.core.model_config import context_of, route_shape_of, vocabulary_of
from areal_actors.core.values import TrainingSequence, WeightsLocation
from areal_actors.messages import ExamplesDropped
from areal_actors.sequences.sequence_check import SequenceLimits

Progress = Callable[[str, int, int, dict[str, float]], None]
"""(phase, done, total, metrics): progress of a long preparation."""


def sequence_limits(model_folder: str) -> SequenceLimits:
    """Vocabulary and context of the model in a Hugging Face folder, read without loading it."""
    return SequenceLimits(
        vocabulary=vocabulary_of(model_folder),
        context=context_of(model_folder) or 0,
        routes=route_shape_of(model_folder),
    )


class TrainingEngine(Protocol):
    """Holds the model being trained and its optimizer."""

    weight_version: int
    """Version of the current weights: the number of steps, including those that changed no weight."""
    limits: SequenceLimits
    """The model's limits on training sequences."""

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """Take one optimizer step on a batch of sequences and return its metrics.

        Without sequences, count a step that changes no weight.

        Raises:
            UntrainableBatch: no sequence has a trained token, or the loss or the gradient is not finite. The step is
                not counted, and weights and optimizer are unchanged.
            RanksLost: a process of a multi-process engine died (any method may raise it). The engine is then in its
                initial
                state, at version 0: `load` a checkpoint to continue.
        """
        ...

    def evaluate(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """Loss and measures of sequences under the current weights, which stay unchanged.

        Raises:
            EngineError: no sequence has a trained token, or a reward is not finite.
        """
        ...

    def publish(self, folder: str) -> WeightsLocation:
        """Write the current weights into a new folder for inference workers."""
        ...

    def checksum(self) -> str:
        """Checksum of the current weights, as `publish` returns it; empty if the engine has none."""
        ...

    def save(self, folder: str) -> None:
        """Write model (Hugging Face format), optimizer, schedule and random state."""
        ...

    def load(self, folder: str) -> None:
        """Load a checkpoint that `save` wrote.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        ...


class EngineFactory(Protocol):
    """Creates or finds the model, and makes the engine that trains it; slow, runs in a thread."""

    def __call__(self, progress: Progress) -> TrainingEngine:
        """Make the engine; raises SetupError if the model is not available."""
        ...


class SupervisedData(Protocol):
    """Training data of a run without episodes: examples as sequences."""

    def begin(self, model_folder: str) -> ExamplesDropped | None:
        """Prepare sequences for the model in this Hugging Face folder; returns which examples are dropped.

        Raises:
            SetupError: it has no tokenizer, or examples are too long for it.
        """
        ...

    def sequences(self, numbers: Sequence[int]) -> list[TrainingSequence]:
        """Sequences of the examples with these numbers; raises SetupError if one cannot be converted."""
        ...

    def held_out_sequences(self, weight_version: int) -> list[TrainingSequence]:
        """Sequences for the evaluation of this version; empty if it is not evaluated."""
        ...
