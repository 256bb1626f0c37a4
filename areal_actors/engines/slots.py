"""The completions being decoded, as columns over slots: slot i of n in use is row i of every decode step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from areal_actors.engines.base import TokenChunk
from areal_actors.engines.sampling import uniforms
from areal_actors.errors import EngineError
from areal_actors.tokenizer import ChatTokenizer, TextStream
from areal_actors.values import PROMPT_VERSION, SamplingParams, TokenColumns, spans


class Completion:
    """One request from its acceptance to its last chunk."""

    def __init__(
        self, request_id: str, prompt_ids: NDArray[np.int64], sampling: SamplingParams, tokenizer: ChatTokenizer, *, stream: bool
    ) -> None:
        self.request_id = request_id
        self.prompt_ids = prompt_ids
        self.prompt_key = prompt_ids.tobytes()
        """Equal for the siblings of a group."""
        self.sampling = sampling
        self.stream = stream
        self.loop = asyncio.get_running_loop()
        self.chunks: asyncio.Queue[TokenChunk | EngineError] = asyncio.Queue()
        self.text = TextStream(tokenizer, sampling.stop) if stream or sampling.stop else None
        """Follows the text token by token where somebody needs it so."""
        self.delivered = 0
        """Tokens of the completion that were handed over in chunks."""


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
        self._tokenizer = tokenizer
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
        self._uniforms[row, length:limit] = uniforms(completion.sampling.seed, limit - length)
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

    def chunk(self, row: int, *, ended: bool) -> TokenChunk | None:
        """What is to be handed over of this row after a token was added; None if that can wait for a later one."""
        completion = self.running[row]
        start, end = len(completion.prompt_ids) + completion.delivered, int(self.lengths[row])
        stopped = bool(self._stops[self.tokens[row, end - 1]])
        text = ""
        if completion.text is not None and not stopped:
            text = completion.text.push([int(self.tokens[row, end - 1])])
            stopped = bool(completion.text.matched)
        if not (ended or stopped or completion.stream):
            return None
        completion.delivered = end - len(completion.prompt_ids)
        columns = self._columns(row, start, end)
        if not (ended or stopped):
            return TokenChunk(columns=columns, text=text)
        return TokenChunk(columns=columns, text=self._last_text(row, text), finish_reason="stop" if stopped else "length")

    def _last_text(self, row: int, text: str) -> str:
        """Text of a row's last chunk: all of it, or what a stream has still held back, without the stop token."""
        completion = self.running[row]
        if completion.text is None:
            ids = self.tokens[row, len(completion.prompt_ids) : self.lengths[row]]
            return self._tokenizer.decode(ids[: len(ids) - int(self._stops[ids[-1]])].tolist())
        text += completion.text.finish()
        return text if completion.stream else completion.text.released

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
