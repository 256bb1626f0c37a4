"""What an engine is: the outside world of tensors, behind small protocols. Engines never touch the bus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from areal_actors.values import Row, SamplingParams, TokenColumns, Value, WeightsLocation

__all__ = ["EngineCounters", "GenerationEngine", "Row", "TokenChunk", "TrainingEngine"]


class TokenChunk(Value):
    """The next tokens of a completion."""

    columns: TokenColumns
    text: str
    """Text that these tokens add; held back while it may yet become a stop string or an incomplete character."""
    finish_reason: str = ""
    """`stop` or `length` in the last chunk, empty before."""


class EngineCounters(Value):
    """What an engine did since it was last asked, and how full it is now."""

    tokens: int = 0
    """Sampled."""
    prefilled_tokens: int = 0
    """Prompt tokens computed (once for siblings), and all that a change of weights made to be computed again."""
    busy_seconds: float = 0.0
    running: int = 0
    waiting: int = 0


class GenerationEngine(Protocol):
    """Samples completions. Weights change only at a token boundary, and every token carries the version that made it."""

    @property
    def weight_version(self) -> int:
        """The version that makes the next token."""
        ...

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: SamplingParams, *, stream: bool = False
    ) -> AsyncIterator[TokenChunk]:
        """Yield a completion, in one chunk or (`stream`) as it is sampled; closing the iterator aborts it.

        Raises:
            RequestError: a token id is out of range, or prompt and max_tokens exceed the context.
            EngineError: the engine failed.
        """
        ...

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        """Interrupt at a token boundary, load, recompute what is cached, and go on.

        Raises:
            EngineError: the folder is incomplete or the checksum differs; the old weights stay in force.
        """
        ...

    def take_counters(self) -> EngineCounters:
        """Counts since the last call."""
        ...

    async def close(self) -> None:
        """Abort everything and free the model."""
        ...


class TrainingEngine(Protocol):
    """Holds the model being trained and its optimizer."""

    weight_version: int
    """Number of optimizer steps taken: the version of the current weights."""

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Take one optimizer step on a batch of rows and return its metrics.

        Raises:
            EngineError: no row has a trained token, or the loss is not finite.
        """
        ...

    def publish(self, folder: str) -> WeightsLocation:
        """Write the current weights into a new folder, for inference workers to load."""
        ...

    def save(self, folder: str) -> None:
        """Write model (Hugging Face format), optimizer, schedule and random state."""
        ...

    def load(self, folder: str) -> None:
        """Continue from what `save` wrote.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        ...
