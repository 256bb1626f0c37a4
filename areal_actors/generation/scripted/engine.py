"""An engine without a model: for simulations, and to measure everything around an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from hashlib import blake2b

import numpy as np

from areal_actors.core.errors import EngineError, SetupError
from areal_actors.core.values import SamplingParams, TokenColumns, WeightsLocation
from areal_actors.generation.engine import EngineCounters, TokenChunk, validate_prompt
from areal_actors.generation.scripted.engine_description import DESCRIPTION
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer

Script = Callable[[Sequence[int], int], Sequence[tuple[int, float]]]
"""Maps prompt ids and seed to the (token id, log-probability) pairs of a completion."""


def hashed_script(token_ids: Sequence[int], shortest: int, longest: int, end: int | None = None) -> Script:
    """Returns a script with lengths, ids (of `token_ids`) and log-probabilities from a hash of prompt and seed.

    The last id is `end`.
    """

    def script(prompt_ids: Sequence[int], seed: int) -> list[tuple[int, float]]:
        text = np.array([seed, *prompt_ids], dtype="<i8").tobytes()
        key = int.from_bytes(blake2b(text, digest_size=16).digest(), "little")
        numbers = np.random.Generator(np.random.Philox(key=key))
        length = int(numbers.integers(shortest, longest + 1))
        ids = [token_ids[index] for index in numbers.integers(0, len(token_ids), length).tolist()]
        if end is not None:
            ids[-1] = end
        return list(zip(ids, (-numbers.exponential(1.0, length)).tolist(), strict=True))

    return script


class ScriptedEngine:
    """Implements `GenerationEngine`: yields the tokens of its script, with a delay per token.

    Weights are never read: a new version applies from each completion's next token. Completions longer than
    `max_tokens` finish with `length`, all others with `stop`. Settings that select tokens or end completions
    (temperature, bias, stop strings) have no effect.
    """

    abilities = DESCRIPTION.abilities

    def __init__(
        self,
        script: Script | None = None,
        *,
        vocabulary_size: int = 1000,
        context: int = 2**20,
        token_seconds: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        weight_version: int = 0,
    ) -> None:
        self.weight_version = weight_version
        self.vocabulary_size = vocabulary_size
        self.context = context
        self._script = script or hashed_script(range(vocabulary_size), shortest=4, longest=32)
        self._token_seconds = token_seconds
        self._sleep = sleep
        self._closed = False
        self._tokens = 0
        self._running = 0

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a completion: in one chunk at its end, or token by token when `stream` is set.

        Raises:
            RequestError: a token id is out of range, or prompt and max_tokens exceed the context.
            EngineError: the engine was closed.
        """
        validate_prompt(prompt_ids, sampling, resumed_tokens, self.vocabulary_size, self.context)
        whole = self._script(prompt_ids[: len(prompt_ids) - resumed_tokens], sampling.seed or 0)[resumed_tokens:]
        tokens = whole[: sampling.max_tokens]
        finish_reason = "stop" if len(tokens) == len(whole) else "length"
        versions: list[int] = []
        self._running += 1
        try:
            for index in range(len(tokens)):
                if self._token_seconds:
                    await self._sleep(self._token_seconds)
                if self._closed:
                    raise EngineError(f"{request_id}: the generation engine is closed")
                versions.append(self.weight_version)
                self._tokens += 1
                if stream and index + 1 < len(tokens):
                    yield self._chunk(tokens[index : index + 1], versions[index:])
        finally:
            self._running -= 1
        start = max(len(tokens) - 1, 0) if stream else 0
        yield self._chunk(tokens[start:], versions[start:], finish_reason)

    # Nothing is read
    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:  # noqa: ARG002
        """Label all later tokens with this version."""
        self.weight_version = weight_version

    def take_counters(self) -> EngineCounters:
        """Counts since the last call."""
        tokens, self._tokens = self._tokens, 0
        return EngineCounters(tokens=tokens, running=self._running)

    async def close(self) -> None:
        """Fail running completions at their next token."""
        self._closed = True

    def _chunk(
        self, tokens: Sequence[tuple[int, float]], versions: Sequence[int], finish_reason: str = ""
    ) -> TokenChunk:
        token_ids = [token_id for token_id, _ in tokens]
        columns = TokenColumns.of(token_ids, [logprob for _, logprob in tokens], versions)
        return TokenChunk(columns=columns, finish_reason=finish_reason)


def scripted_engine(model_folder: str, settings: GenerationSettings) -> ScriptedEngine:
    """Returns an engine that yields random tokens of this model's vocabulary and ends its turns.

    `[generation.scripted]` sets lengths and times.

    Raises:
        SetupError: the folder has no tokenizer, or one without an end-of-sequence token.
    """
    tokenizer = ChatTokenizer.load(model_folder)
    if not tokenizer.stop_ids:
        raise SetupError(f"{model_folder} has no end-of-sequence token: set eos_token in its tokenizer_config.json")
    special = {*tokenizer.tokenizer.get_added_tokens_decoder(), *tokenizer.stop_ids}
    ordinary = [token_id for token_id in range(tokenizer.vocabulary_size) if token_id not in special]
    return ScriptedEngine(
        hashed_script(ordinary, settings.scripted.shortest, settings.scripted.longest, end=tokenizer.stop_ids[0]),
        vocabulary_size=max(tokenizer.vocabulary_size, max(tokenizer.stop_ids) + 1),
        context=settings.max_model_len,
        token_seconds=settings.scripted.token_seconds,
    )
