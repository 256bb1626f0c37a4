"""A generation engine that corrupts some of its completions: `generation.engine = "poison_engine.py:PoisonEngine"`.

Configured by environment variables: `POISON_KINDS` lists the kinds of corruption (comma-separated, in turn),
`POISON_EVERY` corrupts every n-th completion, and each corrupted one is a line of JSON in the file `POISON_LOG`: its
kind, and its token ids before and after in hexadecimal.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from areal_actors.chaos.corruption import SPOILT, SpoilableCompletion
from areal_actors.core.errors import EngineError
from areal_actors.core.values import SamplingParams, TokenColumns
from areal_actors.generation.engine import TokenChunk
from areal_actors.generation.scripted.engine import ScriptedEngine, scripted_engine
from areal_actors.generation.settings import GenerationSettings

KINDS = (*SPOILT, "raises", "raises-anything", "silent", "endless")


class PoisonEngine:
    """The scripted engine with some corrupted completions."""

    abilities = ScriptedEngine.abilities

    def __init__(self, model_folder: str, settings: GenerationSettings) -> None:
        self._engine = scripted_engine(model_folder, settings)
        self._kinds = itertools.cycle(os.environ["POISON_KINDS"].split(","))
        self._every = int(os.environ["POISON_EVERY"])
        self._log = Path(os.environ["POISON_LOG"])
        self._next = next(self._kinds)
        self._completions = 0
        self.load_weights, self.take_counters, self.close = (
            self._engine.load_weights,
            self._engine.take_counters,
            self._engine.close,
        )

    @property
    def weight_version(self) -> int:
        """See `GenerationEngine`."""
        return self._engine.weight_version

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
    ) -> AsyncGenerator[TokenChunk, None]:
        """See `GenerationEngine`; streamed completions are corrupted in their last chunk."""
        self._completions += 1
        spoils = self._completions % self._every == 0
        async for chunk in self._engine.generate(
            request_id, prompt_ids, sampling, stream=stream, resumed_tokens=resumed_tokens
        ):
            if (
                not spoils
                or not chunk.finish_reason
                or (self._next == "decreasing-version" and self.weight_version == 0)
            ):
                yield chunk
                continue
            kind, self._next = self._next, next(self._kinds)
            spoilt = SpoilableCompletion(chunk, sampling)
            if kind in SPOILT:
                SPOILT[kind](spoilt)
            self._note(kind, chunk, spoilt.whole())
            async for part in _spoilt_parts(kind, spoilt.whole()):
                yield part

    def _note(self, kind: str, before: TokenChunk, after: TokenChunk) -> None:
        line = {"kind": kind, "token_ids": [before.columns.token_ids.hex(), after.columns.token_ids.hex()]}
        with self._log.open("a") as file:
            file.write(json.dumps(line) + "\n")


async def _spoilt_parts(kind: str, spoilt: TokenChunk) -> AsyncGenerator[TokenChunk, None]:
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
