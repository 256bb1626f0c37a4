"""One process of the gateway under measurement.

Everything is real except the engine, which waits and returns a prepared text.
Started by `gateway_system.py` as `python benchmarks/gateway_process.py RUN_FOLDER NAME DELAY_SECONDS CORPUS KIND`; with
the kind `plain` the gateway of a served model records neither conversations nor feedback, and has no candidate.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from itertools import cycle
from pathlib import Path

from cpu_samples import install
from gateway_floor import TOKEN_SECONDS
from gateway_tokenizer import VOCABULARY, Texts, tokenizer_folder

from areal_actors.core.values import SamplingParams, TokenColumns
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.generation.engine import EngineCounters, TokenChunk
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.processes.candidate_workers import worker_class
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.process import serve_actors
from areal_actors.runtime.actor import Actor
from areal_actors.tokenization.tokenizer import ChatTokenizer

ANSWER_TOKENS = 64
ANSWERS = 1024
"""Number of different answers before they repeat."""
SPECIAL_TOKENS = 3


class DelayedEngine(ScriptedEngine):
    """Waits, then yields its next text: complete, or token by token at the speed of a real engine."""

    takes_arrays = True

    def __init__(self, folder: Path, delay_seconds: float, corpus: Path | None) -> None:
        super().__init__(vocabulary_size=VOCABULARY + SPECIAL_TOKENS)
        self._delay_seconds = delay_seconds
        self._answers = cycle(Texts(folder, corpus, seed=1).answers(ANSWERS, ANSWER_TOKENS))

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield the next text; prompt and sampling parameters are ignored."""
        del request_id, prompt_ids, sampling, resumed_tokens
        ids = next(self._answers)
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        if not stream:
            yield self._chunk_of(ids, "stop")
            return
        for place, token in enumerate(ids, start=1):
            yield self._chunk_of([token], "stop" if place == len(ids) else "")
            await asyncio.sleep(TOKEN_SECONDS)

    def take_counters(self) -> EngineCounters:
        """Return zero counters."""
        return EngineCounters()

    def _chunk_of(self, ids: Sequence[int], finish_reason: str) -> TokenChunk:
        columns = TokenColumns.of(ids, [-1.0] * len(ids), [self.weight_version] * len(ids))
        return TokenChunk(columns=columns, finish_reason=finish_reason)


def _inference_worker(context: BuildContext) -> Actor:
    corpus = Path(sys.argv[4]) if sys.argv[4] else None
    engine = DelayedEngine(tokenizer_folder(corpus), float(sys.argv[3]), corpus)
    return worker_class(context.recipe, context.instance)(
        lambda _: engine, name=context.instance, concurrency=context.recipe.actors.inference_worker.concurrency
    )


def _plain_session_manager(context: BuildContext) -> Actor:
    recipe = context.recipe
    return SessionManager(
        recipe.gateway,
        ChatTokenizer.load,
        secret=context.folder.secret(),
        max_model_len=recipe.generation.max_model_len,
        concurrency=recipe.actors.session_manager.concurrency,
        capacity=ExternalCapacity(1, slots=recipe.actors.session_manager.concurrency),
        sampling=recipe.sampling,
        run_folder=context.folder.path,
    )


if __name__ == "__main__":
    if sys.argv[2] == "gateway":
        install()
    plain = {"session_manager": _plain_session_manager} if sys.argv[5:6] == ["plain"] else {}
    serve_actors({**CPU_ACTORS, "inference_worker": _inference_worker, **plain}, sys.argv[1:3])
