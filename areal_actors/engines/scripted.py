"""An engine without a model: for simulations, and to measure everything around an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from hashlib import blake2b

import numpy as np

from areal_actors.engines.base import EngineCounters, TokenChunk
from areal_actors.errors import EngineError, RequestError
from areal_actors.values import SamplingParams, TokenColumns, WeightsLocation

Script = Callable[[Sequence[int], int], Sequence[tuple[int, float]]]
"""From prompt ids and seed to the (token id, log-probability) pairs of a completion."""


def hashed_script(vocabulary_size: int, shortest: int, longest: int) -> Script:
    """A script whose lengths, ids and log-probabilities follow from a hash of prompt and seed."""

    def script(prompt_ids: Sequence[int], seed: int) -> list[tuple[int, float]]:
        text = np.array([seed, *prompt_ids], dtype="<i8").tobytes()
        key = int.from_bytes(blake2b(text, digest_size=16).digest(), "little")
        numbers = np.random.Generator(np.random.Philox(key=key))
        length = int(numbers.integers(shortest, longest + 1))
        ids = numbers.integers(0, vocabulary_size, length)
        return list(zip(ids.tolist(), (-numbers.exponential(1.0, length)).tolist(), strict=True))

    return script


def numbered_text(token_ids: Sequence[int]) -> str:
    """Text of tokens that mean nothing: their ids, each followed by a space."""
    return "".join(f"{token_id} " for token_id in token_ids)


class ScriptedEngine:
    """See `GenerationEngine`: it says what its script says, and takes a delay per token.

    Weights are never read: loading them takes effect at each completion's next token. Completions longer than
    `max_tokens` end by length there, all others by stop. Stop strings and temperature play no part.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        vocabulary_size: int = 1000,
        token_seconds: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        decode: Callable[[Sequence[int]], str] = numbered_text,
        weight_version: int = 0,
    ) -> None:
        self.weight_version = weight_version
        self.vocabulary_size = vocabulary_size
        self._script = script or hashed_script(vocabulary_size, shortest=4, longest=32)
        self._token_seconds = token_seconds
        self._sleep = sleep
        self._decode = decode
        self._closed = False
        self._tokens = 0
        self._running = 0

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: SamplingParams, *, stream: bool = False
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a completion: in one chunk at its end, or token by token when `stream` is set.

        Raises:
            RequestError: a token id is out of range.
            EngineError: the engine was closed.
        """
        outside = [token_id for token_id in prompt_ids if not 0 <= token_id < self.vocabulary_size]
        if outside:
            message = f"prompt_ids holds {outside[0]}, but ids are 0 to {self.vocabulary_size - 1}"
            raise RequestError(message, field="prompt_ids")
        whole = self._script(prompt_ids, sampling.seed or 0)
        said = whole[: sampling.max_tokens]
        finish_reason = "stop" if len(said) == len(whole) else "length"
        versions: list[int] = []
        self._running += 1
        try:
            for index in range(len(said)):
                if self._token_seconds:
                    await self._sleep(self._token_seconds)
                if self._closed:
                    raise EngineError(f"{request_id}: the generation engine is closed")
                versions.append(self.weight_version)
                self._tokens += 1
                if stream and index + 1 < len(said):
                    yield self._chunk(said[index : index + 1], versions[index:])
        finally:
            self._running -= 1
        start = max(len(said) - 1, 0) if stream else 0
        yield self._chunk(said[start:], versions[start:], finish_reason)

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:  # noqa: ARG002 - nothing is read
        """Stamp all later tokens with this version."""
        self.weight_version = weight_version

    def take_counters(self) -> EngineCounters:
        """Counts since the last call."""
        tokens, self._tokens = self._tokens, 0
        return EngineCounters(tokens=tokens, running=self._running)

    async def close(self) -> None:
        """Fail what is running at its next token."""
        self._closed = True

    def _chunk(self, said: Sequence[tuple[int, float]], versions: Sequence[int], finish_reason: str = "") -> TokenChunk:
        token_ids = [token_id for token_id, _ in said]
        columns = TokenColumns.of(token_ids, [logprob for _, logprob in said], versions)
        return TokenChunk(columns=columns, text=self._decode(token_ids), finish_reason=finish_reason)
