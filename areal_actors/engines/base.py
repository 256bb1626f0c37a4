"""What an engine is: the outside world of tensors, behind small protocols. Engines never touch the bus."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from areal_actors.errors import RequestError
from areal_actors.steps.row_check import RowLimits
from areal_actors.values import Row, SamplingParams, TokenColumns, Value, WeightsLocation

__all__ = ["SAMPLING_ABILITIES", "EngineCounters", "GenerationEngine", "Row", "TokenChunk", "TrainingEngine", "refuse_unable"]

SAMPLING_ABILITIES = frozenset(
    {
        "constraint",
        "frequency_penalty",
        "logit_bias",
        "min_p",
        "presence_penalty",
        "stop",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)
"""Fields of `SamplingParams` that an engine may be unable to honour; temperature and max_tokens every engine does."""
DEFAULT_SAMPLING = SamplingParams()
CLIENT_FIELDS = {"constraint": "response_format"}
"""Fields that clients know under another name."""


class TokenChunk(Value):
    """The next tokens of a completion: at least one, unless it is the last chunk of a completion that has some."""

    columns: TokenColumns
    top_ids: bytes = b""
    """u32 [tokens, sampling.top_logprobs]: the most likely tokens beside each sampled one, most likely first."""
    top_logprobs: bytes = b""
    """f32, same shape: their log-probabilities."""
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
    def abilities(self) -> frozenset[str]:
        """Those of `SAMPLING_ABILITIES` that it has; it is never asked for another."""
        ...

    @property
    def weight_version(self) -> int:
        """The version that makes the next token."""
        ...

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: SamplingParams, *, stream: bool = False, sampled: int = 0
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a completion, in one chunk or (`stream`) as it is sampled; closing the iterator aborts it.

        The last `sampled` of the prompt's ids belong to the completion: another worker sampled them before it died. They are
        not yielded again and do not count towards max_tokens; penalties, stop strings, constraint and seed go on from them.

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
    """Number of steps taken, those that changed no weight among them: the version of the current weights."""
    limits: RowLimits
    """Limits of the model on the rows that it is trained on."""

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Take one optimizer step on a batch of rows and return its metrics; without rows, count a step that changes no weight.

        Raises:
            UntrainableBatch: no row has a trained token, or the loss or the gradient is not finite. The step is not counted, and
                weights and optimizer are as before.
            RanksLost: the engine is several processes, and some have died; like any of its methods. It is then as it was made,
                at version 0: `load` a checkpoint to go on from there.
        """
        ...

    def evaluate(self, rows: Sequence[Row]) -> dict[str, float]:
        """Loss and measures of rows under the current weights, which stay as they are.

        Raises:
            EngineError: no row has a trained token, or a reward is not finite.
        """
        ...

    def publish(self, folder: str) -> WeightsLocation:
        """Write the current weights into a new folder, for inference workers to load."""
        ...

    def checksum(self) -> str:
        """The checksum that `publish` would give the current weights; empty where an engine has none."""
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


def refuse_unable(engine: GenerationEngine, sampling: SamplingParams) -> None:
    """Refuse a request that states what this engine cannot honour.

    Raises:
        RequestError: it names the field and the engine.
    """
    stated = {name for name in SAMPLING_ABILITIES if getattr(sampling, name) != getattr(DEFAULT_SAMPLING, name)}
    for name in sorted(stated - engine.abilities):
        field = CLIENT_FIELDS.get(name, name)
        raise RequestError(f"'{field}': {type(engine).__name__}, which samples for this run, does not honour it; leave it out", field)
