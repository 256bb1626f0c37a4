"""Corrupted completions: all kinds of corruption, and an engine that corrupts its next completion on request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import SamplingParams, TokenColumns, VersionSpan, WeightsLocation
from areal_actors.generation.engine import EngineCounters, GenerationEngine, TokenChunk

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")


BEYOND = 2**31
"""Token id beyond any vocabulary."""
FUTURE = 1000
"""Weight versions ahead of the newest."""


class SpoilableCompletion:
    """A whole completion whose parts can be corrupted separately."""

    def __init__(self, chunk: TokenChunk, sampling: SamplingParams) -> None:
        self.ids = chunk.columns.ids_array().astype(np.int64)
        self.logprobs = chunk.columns.logprobs_array().copy()
        self.versions = list(chunk.columns.versions)
        self.reason = chunk.finish_reason
        self.asked = sampling.max_tokens

    @property
    def middle(self) -> int:
        """Position of the corrupted token."""
        return len(self.ids) // 2

    def whole(self) -> TokenChunk:
        """Returns the chunk with its present contents."""
        columns = TokenColumns(
            token_ids=self.ids.astype("<u4").tobytes(),
            logprobs=self.logprobs.astype("<f4").tobytes(),
            versions=tuple(self.versions),
        )
        return TokenChunk(columns=columns, finish_reason=self.reason)

    def logprob(self, value: float) -> None:
        """Set the log-probability in the middle."""
        self.logprobs[self.middle] = value

    def version(self, value: int) -> None:
        """Set the weight version of all tokens from the middle on."""
        version = self.versions[0].weight_version
        self.versions = [
            VersionSpan(weight_version=version, start=0, end=self.middle),
            VersionSpan(weight_version=value, start=self.middle, end=len(self.ids)),
        ]

    def too_many(self) -> None:
        """Repeat the tokens beyond the requested number."""
        times = -(-(self.asked + 1) // len(self.ids))
        self.ids, self.logprobs = np.tile(self.ids, times), np.tile(self.logprobs, times)
        self.versions = [VersionSpan(weight_version=self.versions[0].weight_version, start=0, end=len(self.ids))]

    def gap(self) -> None:
        """Leave a token out of the version spans."""
        self.version(self.versions[0].weight_version)
        self.versions[1] = VersionSpan(
            weight_version=self.versions[1].weight_version, start=self.middle + 1, end=len(self.ids)
        )

    def fewer(self) -> None:
        """Remove a log-probability."""
        self.logprobs = self.logprobs[:-1]

    def beyond(self) -> None:
        """Set an id outside of the vocabulary."""
        self.ids[self.middle] = BEYOND

    def nothing(self) -> None:
        """Remove all tokens."""
        self.ids, self.logprobs, self.versions = self.ids[:0], self.logprobs[:0], []


SPOILT: dict[str, Callable[[SpoilableCompletion], None]] = {
    "nan": lambda completion: completion.logprob(float("nan")),
    "infinite": lambda completion: completion.logprob(float("inf")),
    "minus-infinite": lambda completion: completion.logprob(float("-inf")),
    "positive": lambda completion: completion.logprob(0.5),
    "vocabulary": SpoilableCompletion.beyond,
    "too-many": SpoilableCompletion.too_many,
    "fewer-logprobs": SpoilableCompletion.fewer,
    "unpublished": lambda completion: completion.version(completion.versions[0].weight_version + FUTURE),
    "negative-version": lambda completion: completion.version(-2),
    "decreasing-version": lambda completion: completion.version(completion.versions[0].weight_version - 1),
    "gap": SpoilableCompletion.gap,
    "no-tokens": SpoilableCompletion.nothing,
    "unknown-reason": lambda completion: setattr(completion, "reason", "tired"),
    "no-end": lambda completion: setattr(completion, "reason", ""),
}
"""Kinds of corruption."""


def order(folder: Path, worker: str, way: str) -> None:
    """Request that this inference worker of the run in `folder` corrupts its next completion in this way."""
    path = folder / "chaos" / f"spoil-{worker}"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, way.encode())


class SpoilingEngine:
    """Wraps an engine, and corrupts its next completion on request."""

    def __init__(self, engine: GenerationEngine, folder: Path, worker: str) -> None:
        self._engine = engine
        self._order = folder / "chaos" / f"spoil-{worker}"

    def __getattr__(self, name: str) -> Any:
        """Returns members of the engine that not every engine has, such as `phase` and `release_memory`."""
        return getattr(self._engine, name)

    @property
    def abilities(self) -> frozenset[str]:
        """See `GenerationEngine`."""
        return self._engine.abilities

    @property
    def weight_version(self) -> int:
        """See `GenerationEngine`."""
        return self._engine.weight_version

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: SamplingParams, **options: Any
    ) -> AsyncGenerator[TokenChunk, None]:
        """See `GenerationEngine` and `RoutingEngine`; streamed completions are corrupted at their ends."""
        async for chunk in self._engine.generate(request_id, prompt_ids, sampling, **options):
            if chunk.finish_reason and len(chunk.columns) > 1 and (way := self._take_order()):
                spoilt = SpoilableCompletion(chunk, sampling)
                SPOILT[way](spoilt)
                yield spoilt.whole()
            else:
                yield chunk

    def _take_order(self) -> str:
        try:
            way = self._order.read_text()
            self._order.unlink()
        except FileNotFoundError:
            return ""
        return way

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        """See `GenerationEngine`."""
        await self._engine.load_weights(location, weight_version)

    def take_counters(self) -> EngineCounters:
        """See `GenerationEngine`."""
        return self._engine.take_counters()

    async def close(self) -> None:
        """See `GenerationEngine`."""
        await self._engine.close()
