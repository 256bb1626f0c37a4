"""The completions being decoded, as columns over slots: slot i of n in use is row i of every decode step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from areal_actors.engines.base import TokenChunk
from areal_actors.engines.leaning import Leaning
from areal_actors.engines.sampling import TopTokens, uniforms
from areal_actors.errors import EngineError, RequestError
from areal_actors.text.tokenizer import ChatTokenizer, TextStream
from areal_actors.values import PROMPT_VERSION, SamplingParams, TokenColumns, spans


class Completion:
    """One request from its acceptance to its last chunk."""

    def __init__(
        self,
        request_id: str,
        prompt_ids: NDArray[np.int64],
        sampling: SamplingParams,
        tokenizer: ChatTokenizer,
        *,
        stream: bool,
        sampled: int = 0,
        leaning: Leaning | None = None,
    ) -> None:
        """The last `sampled` of the prompt's ids are the completion's own, from a worker that died."""
        self.request_id = request_id
        self.prompt_ids = prompt_ids
        self.prompt_key = prompt_ids.tobytes()
        """Equal for the siblings of a group."""
        self.sampling = sampling
        self.stream = stream
        self.sampled = sampled
        self.leaning = leaning
        self.loop = asyncio.get_running_loop()
        self.chunks: asyncio.Queue[TokenChunk | EngineError | RequestError] = asyncio.Queue()
        self.stops = TextStream(tokenizer, sampling.stop, special=True) if sampling.stop else None
        """Looks for stop strings, which may be special tokens."""
        stopped = self.follow(prompt_ids[-sampled:].tolist()) if sampled else False
        self.over = bool(sampled and (prompt_ids[-1] in tokenizer.stop_ids or stopped))
        """What the other worker sampled is the whole completion already."""
        self.delivered = 0
        """Tokens that were handed over in chunks."""
        self.top_ids = np.zeros((sampling.max_tokens, sampling.top_logprobs), dtype="<u4")
        self.top_logprobs = np.zeros((sampling.max_tokens, sampling.top_logprobs), dtype="<f4")

    def follow(self, token_ids: Sequence[int]) -> bool:
        """Take tokens of the completion in; whether a stop string has appeared."""
        if self.stops is None:
            return False
        self.stops.push(token_ids)
        return bool(self.stops.matched)


class Slots:
    """Tokens, log-probabilities and weight versions of every running completion, by position in its sequence."""

    def __init__(self, slots: int, context: int, vocabulary_size: int, tokenizer: ChatTokenizer) -> None:
        self.running: list[Completion] = []
        self.capacity = slots
        self.tokens = np.zeros((slots, context), dtype=np.int64)
        self.lengths = np.zeros(slots, dtype=np.int64)
        """Tokens of prompt and completion so far."""
        self._logprobs = np.zeros((slots, context), dtype=np.float32)
        self._versions = np.full((slots, context), PROMPT_VERSION, dtype=np.int32)
        self._uniforms = np.zeros((slots, context), dtype=np.float32)
        self._limits = np.zeros(slots, dtype=np.int64)
        self._rows = np.arange(slots)
        self._stops = np.zeros(vocabulary_size, dtype=np.bool_)
        self._stops[[token for token in tokenizer.stop_ids if token < vocabulary_size]] = True

    def __len__(self) -> int:
        return len(self.running)

    def add(self, completion: Completion) -> int:
        """Give a completion the next row, and say which."""
        row, length = len(self.running), len(completion.prompt_ids)
        limit = length + completion.sampling.max_tokens
        self.running.append(completion)
        self.tokens[row, :length] = completion.prompt_ids
        self._uniforms[row, length:limit] = uniforms(completion.sampling.seed, limit - length, completion.sampled)
        self.lengths[row] = length
        self._limits[row] = limit
        return row

    def remove(self, rows: Iterable[int]) -> list[tuple[int, int, int]]:
        """Free these rows, moving the last ones into their places.

        Returns:
            (from, to, tokens) of every move, for the keys and values to follow.
        """
        moves = []
        for row in sorted(rows, reverse=True):
            last = len(self.running) - 1
            if row != last:
                for column in (self.tokens, self.lengths, self._logprobs, self._versions, self._uniforms, self._limits):
                    column[row] = column[last]
                self.running[row] = self.running[last]
                moves.append((last, row, int(self.lengths[last])))
            self.running.pop()
        return moves

    def step_inputs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Last token, its position, and the uniform number that draws the next one; each [rows]."""
        rows = self._rows[: len(self)]
        positions = self.lengths[: len(self)] - 1
        return self.tokens[rows, positions], positions, self._uniforms[rows, positions + 1]

    def append(self, token_ids: NDArray[np.int64], logprobs: NDArray[np.float32], weight_version: int) -> NDArray[np.intp]:
        """Add one token to every row, and say which rows ended by a stop token or by length."""
        rows, places = self._rows[: len(self)], self.lengths[: len(self)]
        self.tokens[rows, places] = token_ids
        self._logprobs[rows, places] = logprobs
        self._versions[rows, places] = weight_version
        places += 1
        return np.flatnonzero(self._stops[token_ids] | (places >= self._limits[: len(self)]))

    def keep_top(self, top: TopTokens) -> None:
        """Keep the most likely tokens beside those that were just added."""
        for row, token_ids, logprobs in zip(top.rows, top.token_ids, top.logprobs, strict=True):
            completion, asked = self.running[row], self.running[row].sampling.top_logprobs
            place = self.lengths[row] - 1 - len(completion.prompt_ids)
            completion.top_ids[place] = token_ids[:asked]
            completion.top_logprobs[place] = logprobs[:asked]

    def chunk(self, row: int, *, ended: bool) -> TokenChunk | None:
        """What is to be handed over of this row after a token was added; None if that can wait for a later one."""
        completion = self.running[row]
        prompt, end = len(completion.prompt_ids), int(self.lengths[row])
        last = int(self.tokens[row, end - 1])
        stopped = bool(self._stops[last]) or completion.follow([last])
        if not (ended or stopped or completion.stream):
            return None
        start, completion.delivered = completion.delivered, end - prompt
        over = ended or stopped
        return TokenChunk(
            columns=self._columns(row, prompt + start, end),
            top_ids=completion.top_ids[start : completion.delivered].tobytes(),
            top_logprobs=completion.top_logprobs[start : completion.delivered].tobytes(),
            finish_reason=("stop" if stopped else "length") if over else "",
        )

    def _columns(self, row: int, start: int, end: int) -> TokenColumns:
        return TokenColumns(
            token_ids=self.tokens[row, start:end].astype("<u4").tobytes(),
            logprobs=self._logprobs[row, start:end].astype("<f4").tobytes(),
            versions=spans(self._versions[row, start:end].tolist()),
        )


def padded_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of sequences in batches of similar length, each of at most `budget` padded tokens (or a single sequence)."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # In ascending order the newcomer is the longest of its batch, and sets the padding of all.
        if not batches or (len(batches[-1]) + 1) * lengths[index] > budget:
            batches.append([])
        batches[-1].append(index)
    return batches
