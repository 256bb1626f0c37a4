"""Completions that cannot be true: every way to spoil one, and an engine that spoils its next when it is asked to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import numpy as np

from areal_actors.engines.base import EngineCounters, GenerationEngine, TokenChunk
from areal_actors.values import SamplingParams, TokenColumns, VersionSpan, WeightsLocation

BEYOND = 2**31
"""No vocabulary is as large."""
FUTURE = 1000
"""Versions ahead of the newest."""


class Completion:
    """A whole completion in pieces that can be spoilt one by one."""

    def __init__(self, chunk: TokenChunk, sampling: SamplingParams) -> None:
        self.ids = chunk.columns.ids_array().astype(np.int64)
        self.logprobs = chunk.columns.logprobs_array().copy()
        self.versions = list(chunk.columns.versions)
        self.reason = chunk.finish_reason
        self.asked = sampling.max_tokens

    @property
    def middle(self) -> int:
        """Position of the token that is spoilt."""
        return len(self.ids) // 2

    def whole(self) -> TokenChunk:
        """The chunk as it is now."""
        columns = TokenColumns(
            token_ids=self.ids.astype("<u4").tobytes(),
            logprobs=self.logprobs.astype("<f4").tobytes(),
            versions=tuple(self.versions),
        )
        return TokenChunk(columns=columns, finish_reason=self.reason)

    def logprob(self, value: float) -> None:
        """Put this log-probability in the middle."""
        self.logprobs[self.middle] = value

    def version(self, value: int) -> None:
        """All tokens from the middle on are of this version."""
        version = self.versions[0].weight_version
        self.versions = [
            VersionSpan(weight_version=version, start=0, end=self.middle),
            VersionSpan(weight_version=value, start=self.middle, end=len(self.ids)),
        ]

    def too_many(self) -> None:
        """More tokens than were asked for."""
        times = -(-(self.asked + 1) // len(self.ids))
        self.ids, self.logprobs = np.tile(self.ids, times), np.tile(self.logprobs, times)
        self.versions = [VersionSpan(weight_version=self.versions[0].weight_version, start=0, end=len(self.ids))]

    def gap(self) -> None:
        """Version spans that leave a token out."""
        self.version(self.versions[0].weight_version)
        self.versions[1] = VersionSpan(weight_version=self.versions[1].weight_version, start=self.middle + 1, end=len(self.ids))

    def fewer(self) -> None:
        """A log-probability is missing."""
        self.logprobs = self.logprobs[:-1]

    def beyond(self) -> None:
        """An id that the vocabulary does not have."""
        self.ids[self.middle] = BEYOND

    def nothing(self) -> None:
        """An end without a token."""
        self.ids, self.logprobs, self.versions = self.ids[:0], self.logprobs[:0], []


SPOILT: dict[str, Callable[[Completion], None]] = {
    "nan": lambda completion: completion.logprob(float("nan")),
    "infinite": lambda completion: completion.logprob(float("inf")),
    "minus-infinite": lambda completion: completion.logprob(float("-inf")),
    "positive": lambda completion: completion.logprob(0.5),
    "vocabulary": Completion.beyond,
    "too-many": Completion.too_many,
    "fewer-logprobs": Completion.fewer,
    "unpublished": lambda completion: completion.version(completion.versions[0].weight_version + FUTURE),
    "negative-version": lambda completion: completion.version(-2),
    "decreasing-version": lambda completion: completion.version(completion.versions[0].weight_version - 1),
    "gap": Completion.gap,
    "no-tokens": Completion.nothing,
    "unknown-reason": lambda completion: setattr(completion, "reason", "tired"),
    "no-end": lambda completion: setattr(completion, "reason", ""),
}
"""Ways to spoil a completion."""


def order(folder: Path, worker: str, way: str) -> None:
    """Have this inference worker of the run in `folder` spoil its next completion so."""
    path = folder / "chaos" / f"spoil-{worker}"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(way)
    unfinished.replace(path)


class SpoilingEngine:
    """An engine, whose next completion is spoilt when that was ordered."""

    def __init__(self, engine: GenerationEngine, folder: Path, worker: str) -> None:
        self._engine = engine
        self._order = folder / "chaos" / f"spoil-{worker}"

    @property
    def abilities(self) -> frozenset[str]:
        """See `GenerationEngine`."""
        return self._engine.abilities

    @property
    def weight_version(self) -> int:
        """See `GenerationEngine`."""
        return self._engine.weight_version

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: SamplingParams, *, stream: bool = False, sampled: int = 0
    ) -> AsyncGenerator[TokenChunk, None]:
        """See `GenerationEngine`; streamed completions are spoilt at their ends."""
        async for chunk in self._engine.generate(request_id, prompt_ids, sampling, stream=stream, sampled=sampled):
            if chunk.finish_reason and len(chunk.columns) > 1 and (way := self._ordered()):
                spoilt = Completion(chunk, sampling)
                SPOILT[way](spoilt)
                yield spoilt.whole()
            else:
                yield chunk

    def _ordered(self) -> str:
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
