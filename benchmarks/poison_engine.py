"""A generation engine that spoils some of its completions, one way after the other: `generation.engine = "poison_engine.py:PoisonEngine"`.

The environment of the run says how: `POISON_KINDS` names the ways (comma-separated, in turn), `POISON_EVERY` spoils every n-th
completion, and each one that is spoilt is a line of JSON in the file `POISON_LOG`: its kind, and its token ids before and after in
hexadecimal.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import numpy as np

from areal_actors.engines.base import TokenChunk
from areal_actors.engines.scripted import ScriptedEngine, scripted_engine
from areal_actors.engines.settings import GenerationSettings
from areal_actors.errors import EngineError
from areal_actors.values import SamplingParams, TokenColumns, VersionSpan, pack_ids

BEYOND = 2**31
"""No vocabulary is as large."""
FUTURE = 1000
"""Versions ahead of the newest."""


class Chunk:
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
        columns = TokenColumns(token_ids=pack_ids(self.ids), logprobs=self.logprobs.tobytes(), versions=tuple(self.versions))  # type: ignore[arg-type]
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


SPOILT: dict[str, Callable[[Chunk], None]] = {
    "nan": lambda chunk: chunk.logprob(float("nan")),
    "infinite": lambda chunk: chunk.logprob(float("inf")),
    "minus-infinite": lambda chunk: chunk.logprob(float("-inf")),
    "positive": lambda chunk: chunk.logprob(0.5),
    "vocabulary": Chunk.beyond,
    "too-many": Chunk.too_many,
    "fewer-logprobs": Chunk.fewer,
    "unpublished": lambda chunk: chunk.version(chunk.versions[0].weight_version + FUTURE),
    "negative-version": lambda chunk: chunk.version(-2),
    "decreasing-version": lambda chunk: chunk.version(chunk.versions[0].weight_version - 1),
    "gap": Chunk.gap,
    "no-tokens": Chunk.nothing,
    "unknown-reason": lambda chunk: setattr(chunk, "reason", "tired"),
    "no-end": lambda chunk: setattr(chunk, "reason", ""),
}
"""Ways to spoil a completion that is otherwise answered."""
KINDS = (*SPOILT, "raises", "raises-anything", "silent", "endless")


class PoisonEngine:
    """The scripted engine, some of whose completions are spoilt."""

    abilities = ScriptedEngine.abilities

    def __init__(self, model_folder: str, settings: GenerationSettings) -> None:
        self._engine = scripted_engine(model_folder, settings)
        self._kinds = itertools.cycle(os.environ["POISON_KINDS"].split(","))
        self._every = int(os.environ["POISON_EVERY"])
        self._log = Path(os.environ["POISON_LOG"])
        self._next = next(self._kinds)
        self._completions = 0
        self.load_weights, self.take_counters, self.close = self._engine.load_weights, self._engine.take_counters, self._engine.close

    @property
    def weight_version(self) -> int:
        """See `GenerationEngine`."""
        return self._engine.weight_version

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: SamplingParams, *, stream: bool = False, sampled: int = 0
    ) -> AsyncGenerator[TokenChunk, None]:
        """See `GenerationEngine`; streamed completions are spoilt at their ends."""
        self._completions += 1
        spoils = self._completions % self._every == 0
        async for chunk in self._engine.generate(request_id, prompt_ids, sampling, stream=stream, sampled=sampled):
            if not spoils or not chunk.finish_reason or (self._next == "decreasing-version" and self.weight_version == 0):
                yield chunk
                continue
            kind, self._next = self._next, next(self._kinds)
            spoilt = Chunk(chunk, sampling)
            if kind in SPOILT:
                SPOILT[kind](spoilt)
            self._note(kind, chunk, spoilt.whole())
            async for part in _said(kind, spoilt.whole()):
                yield part

    def _note(self, kind: str, before: TokenChunk, after: TokenChunk) -> None:
        line = {"kind": kind, "token_ids": [before.columns.token_ids.hex(), after.columns.token_ids.hex()]}
        with self._log.open("a") as file:
            file.write(json.dumps(line) + "\n")


async def _said(kind: str, spoilt: TokenChunk) -> AsyncGenerator[TokenChunk, None]:
    if kind == "raises":
        raise EngineError("the device is out of memory")
    if kind == "raises-anything":
        raise KeyError("sequence 17")
    if kind == "silent":
        await asyncio.Event().wait()
    if kind == "endless":
        while True:
            yield TokenChunk(columns=TokenColumns())
            await asyncio.sleep(0)
    yield spoilt
