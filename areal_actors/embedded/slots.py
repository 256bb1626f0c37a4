"""Completions as columns over slots: the i-th of n running completions is row i of every decode step.

Rows without a running completion keep the tokens of an earlier one, whose KV cache a later prompt may continue
(`prefix_cache`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.values import PROMPT_VERSION, SamplingParams, TokenColumns, spans
from areal_actors.embedded.logits_processor import LogitsProcessor
from areal_actors.embedded.sampling import TopTokens, uniforms
from areal_actors.generation.engine import TokenChunk
from areal_actors.tokenization.tokenizer import ChatTokenizer, TextStream

ANNOUNCED_SECONDS = 1.0
"""Wait for a slot after which the first token is delivered on its own."""


class DecodeRequest:
    """One request from its acceptance to its last chunk."""

    def __init__(
        self,
        request_id: str,
        prompt_ids: NDArray[np.int64],
        sampling: SamplingParams,
        tokenizer: ChatTokenizer,
        *,
        stream: bool,
        resumed_tokens: int = 0,
        processor: LogitsProcessor | None = None,
        routes_from: int | None = None,
    ) -> None:
        """The last `resumed_tokens` ids of the prompt belong to the completion.

        Another worker sampled them before it died.
        """
        self.request_id = request_id
        self.prompt_ids = prompt_ids
        self.prompt_key = prompt_ids.tobytes()
        """Equal for all completions of a group."""
        self.sampling = sampling
        self.stream = stream
        self.arrived = time.monotonic()
        self.announces = False
        """True if its first token is delivered at once, because it has waited: the episode's time limit leaves out the
        wait."""
        self.resumed_tokens = resumed_tokens
        self.processor = processor
        self.loop = asyncio.get_running_loop()
        self.chunks: asyncio.Queue[TokenChunk | EngineError | RequestError] = asyncio.Queue()
        self.stops = TextStream(tokenizer, sampling.stop, special=True) if sampling.stop else None
        """Detects stop strings, which may be special tokens."""
        stopped = self.detect_stop(prompt_ids[-resumed_tokens:].tolist()) if resumed_tokens else False
        self.finished = bool(resumed_tokens and (prompt_ids[-1] in tokenizer.stop_ids or stopped))
        """True if the other worker sampled the whole completion."""
        self.row = -1
        """Row of its slot; -1 before it is admitted and after its end."""
        self.delivered = 0
        """Number of tokens delivered in chunks."""
        self.routed = routes_from
        """Position from which experts are still to be collected; None if none are wanted."""
        self.routes: list[NDArray[np.integer[Any]]] = []
        """Experts collected since the last chunk, each [positions, entries]."""
        self.top_ids = np.zeros((sampling.max_tokens, sampling.top_logprobs), dtype="<u4")
        self.top_logprobs = np.zeros((sampling.max_tokens, sampling.top_logprobs), dtype="<f4")

    def end_wait(self) -> None:
        """Note that it has a slot."""
        self.announces = time.monotonic() - self.arrived > ANNOUNCED_SECONDS

    def detect_stop(self, token_ids: Sequence[int]) -> bool:
        """Append tokens of the completion; True if a stop string has appeared."""
        if self.stops is None:
            return False
        self.stops.push(token_ids)
        return bool(self.stops.matched)


class DecodeSlots:
    """Tokens, log-probabilities and weight versions of every completion, by row and position."""

    def __init__(self, slots: int, context: int, vocabulary_size: int, tokenizer: ChatTokenizer) -> None:
        self.running: dict[int, DecodeRequest] = {}
        """By row; `PrefixCache.compact` makes the rows 0 to n - 1 before a decode step."""
        self.capacity = slots
        self.tokens = np.zeros((slots, context), dtype=np.int64)
        self.lengths = np.zeros(slots, dtype=np.int64)
        """Tokens of prompt and completion so far."""
        self.cached = np.zeros(slots, dtype=np.int64)
        """Number of a row's first tokens whose keys and values are in the KV cache, of ended completions, too."""
        self._logprobs = np.zeros((slots, context), dtype=np.float32)
        self._versions = np.full((slots, context), PROMPT_VERSION, dtype=np.int32)
        self._uniforms = np.zeros((slots, context), dtype=np.float32)
        self._limits = np.zeros(slots, dtype=np.int64)
        self._rows = np.arange(slots)
        self._stops = np.zeros(vocabulary_size, dtype=np.bool_)
        self._stops[[token for token in tokenizer.stop_ids if token < vocabulary_size]] = True

    def __len__(self) -> int:
        return len(self.running)

    def add(self, row: int, completion: DecodeRequest) -> None:
        """Assign a free KV-cache slot, which may hold the first `cached` tokens of the prompt already."""
        length = len(completion.prompt_ids)
        limit = length + completion.sampling.max_tokens
        self.running[row], completion.row = completion, row
        self.tokens[row, :length] = completion.prompt_ids
        self._uniforms[row, length:limit] = uniforms(
            completion.sampling.seed, limit - length, completion.resumed_tokens
        )
        self.lengths[row] = length
        self._limits[row] = limit

    def remove(self, rows: Iterable[int]) -> None:
        """Free the rows of these completions; their tokens stay."""
        for row in rows:
            self.running.pop(row).row = -1

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Exchange running completions with the tokens that free rows keep."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.running[target] = self.running.pop(source)
            self.running[target].row = target
        used = int(self._limits[sources].max())
        for column in (self.lengths, self._limits):
            column[targets] = column[sources]
        for columns in (self._logprobs, self._versions, self._uniforms):
            columns[targets, :used] = columns[sources, :used]
        both, exchanged = np.concatenate((targets, sources)), np.concatenate((sources, targets))
        self.tokens[both], self.cached[both] = self.tokens[exchanged], self.cached[exchanged]

    def step_inputs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Last token, its position, and the uniform number that draws the next one; each [rows]."""
        rows = self._rows[: len(self)]
        positions = self.lengths[: len(self)] - 1
        return self.tokens[rows, positions], positions, self._uniforms[rows, positions + 1]

    def append(
        self, token_ids: NDArray[np.int64], logprobs: NDArray[np.float32], weight_version: int
    ) -> NDArray[np.intp]:
        """Append one token to every row; returns the rows that ended by a stop token or by length."""
        rows, places = self._rows[: len(self)], self.lengths[: len(self)]
        self.tokens[rows, places] = token_ids
        self._logprobs[rows, places] = logprobs
        self._versions[rows, places] = weight_version
        places += 1
        self.cached[: len(self)] += 1
        return np.flatnonzero(self._stops[token_ids] | (places >= self._limits[: len(self)]))

    def set_top_logprobs(self, top: TopTokens) -> None:
        """Store the most likely tokens at the position of the tokens just appended."""
        for row, token_ids, logprobs in zip(top.rows, top.token_ids, top.logprobs, strict=True):
            completion, asked = self.running[row], self.running[row].sampling.top_logprobs
            place = self.lengths[row] - 1 - len(completion.prompt_ids)
            completion.top_ids[place] = token_ids[:asked]
            completion.top_logprobs[place] = logprobs[:asked]

    def chunk(self, row: int, *, ended: bool) -> TokenChunk | None:
        """Chunk to deliver for this row after a token was appended; None if it can be part of a later chunk."""
        completion = self.running[row]
        prompt, end = len(completion.prompt_ids), int(self.lengths[row])
        last = int(self.tokens[row, end - 1])
        stopped = bool(self._stops[last]) or completion.detect_stop([last])
        if not (ended or stopped or completion.stream or completion.announces):
            return None
        completion.announces = False
        start, completion.delivered = completion.delivered, end - prompt
        finished = ended or stopped
        return TokenChunk(
            columns=TokenColumns(
                token_ids=self.tokens[row, prompt + start : end].astype("<u4").tobytes(),
                logprobs=self._logprobs[row, prompt + start : end].astype("<f4").tobytes(),
                versions=spans(self._versions[row, prompt + start : end].tolist()),
            ),
            top_ids=completion.top_ids[start : completion.delivered].tobytes(),
            top_logprobs=completion.top_logprobs[start : completion.delivered].tobytes(),
            finish_reason=("stop" if stopped else "length") if finished else "",
        )
