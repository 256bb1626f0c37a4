"""A user's engine in a file of its own: it repeats its prompt backwards, one token at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from areal_actors.core.errors import EngineError
from areal_actors.core.values import SamplingParams, TokenColumns, WeightsLocation
from areal_actors.generation.engine import EngineCounters, TokenChunk, validate_prompt
from areal_actors.generation.settings import GenerationSettings

VOCABULARY = 300


class BackwardsEngine:
    abilities: frozenset[str] = frozenset()

    def __init__(self, model_folder: str, settings: GenerationSettings) -> None:
        self.model_folder = model_folder
        self.context = settings.max_model_len
        self.weight_version = 0
        self.tokens = 0
        self.running = 0
        self.closed = False

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
    ) -> AsyncIterator[TokenChunk]:
        validate_prompt(prompt_ids, sampling, resumed_tokens, VOCABULARY, self.context)
        whole = list(reversed(prompt_ids[: len(prompt_ids) - resumed_tokens])) * 40
        columns = TokenColumns()
        self.running += 1
        try:
            for token_id in whole[resumed_tokens:][: sampling.max_tokens]:
                await asyncio.sleep(0)
                if self.closed:
                    raise EngineError(f"{request_id}: the engine is closed")
                if stream and len(columns):
                    yield TokenChunk(columns=columns)
                    columns = TokenColumns()
                columns = columns.append(TokenColumns.of([token_id], [-0.5], [self.weight_version]))
                self.tokens += 1
        finally:
            self.running -= 1
        yield TokenChunk(
            columns=columns, finish_reason="length" if len(whole) > resumed_tokens + sampling.max_tokens else "stop"
        )

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        self.weight_version = weight_version

    def take_counters(self) -> EngineCounters:
        tokens, self.tokens = self.tokens, 0
        return EngineCounters(tokens=tokens, running=self.running)

    async def close(self) -> None:
        self.closed = True


class UnknownAbilityEngine(BackwardsEngine):
    abilities = frozenset({"top_k", "constraint", "stops", "beams"})


class IncompleteEngine:
    weight_version = 0

    def __init__(self, model_folder: str, settings: GenerationSettings) -> None:
        self.settings = settings
