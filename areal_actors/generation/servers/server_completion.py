"""Tokens of one completion over all its requests to a server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from areal_actors.core.values import SamplingParams, TokenColumns
from areal_actors.generation.engine import TokenChunk
from areal_actors.generation.servers.dialect import SegmentPart
from areal_actors.tokenization.tokenizer import ChatTokenizer, TextStream
from areal_actors.tokenization.tool_parsers.grammar import resolve_delimiters


class ServerCompletion:
    """Tokens of one completion over all its segments."""

    def __init__(self, prompt_ids: list[int], sampling: SamplingParams, tokenizer: ChatTokenizer, resumed_tokens: int) -> None:
        self.token_ids = prompt_ids
        """Prompt, and all tokens sampled so far."""
        self.sampling = replace(sampling, constraint=sampling.constraint and resolve_delimiters(sampling.constraint, tokenizer.special_id))
        self.finish_reason = ""
        self.logprobs: list[float] = []
        self.aborts = 0
        """Segments that the server ended by itself."""
        self._versions: list[int] = []
        self._top: list[Sequence[tuple[int, float]]] = []
        self._stop_ids = tokenizer.stop_ids
        self._stops = TextStream(tokenizer, sampling.stop, special=True) if sampling.stop else None
        self._delivered = 0
        if resumed_tokens and (prompt_ids[-1] in self._stop_ids or self._stops_at(prompt_ids[-resumed_tokens:])):
            self.finish_reason = "stop"

    @property
    def remaining(self) -> int:
        """Tokens that may still be sampled."""
        return self.sampling.max_tokens - len(self.logprobs)

    @property
    def undelivered(self) -> int:
        """Tokens that are in no chunk yet."""
        return len(self.logprobs) - self._delivered

    def has_ended(self) -> bool:
        """True once no token follows."""
        return bool(self.finish_reason)

    def add(self, part: SegmentPart, weight_version: int) -> int:
        """Add tokens up to a stop token or stop string, or to the limit; returns how many."""
        before = len(self.logprobs)
        for place, (token_id, logprob) in enumerate(zip(part.token_ids, part.logprobs, strict=True)):
            self.token_ids.append(token_id)
            self.logprobs.append(logprob)
            self._versions.append(weight_version)
            if self.sampling.top_logprobs:
                self._top.append(part.top[place])
            if token_id in self._stop_ids or self._stops_at([token_id]):
                self.finish_reason = "stop"
            elif not self.remaining:
                self.finish_reason = "length"
            if self.finish_reason:
                break
        if part.finish_reason in ("stop", "length") and not self.finish_reason:
            self.finish_reason = part.finish_reason
        return len(self.logprobs) - before

    def _stops_at(self, token_ids: Sequence[int]) -> bool:
        if self._stops is None:
            return False
        self._stops.push(token_ids)
        return bool(self._stops.matched)

    def chunk(self) -> TokenChunk:
        """Returns the tokens that are in no chunk yet, and the finish reason if there is one."""
        start, self._delivered = self._delivered, len(self.logprobs)
        token_ids = self.token_ids[len(self.token_ids) - len(self.logprobs) + start :]
        top = np.array([list(row) for row in self._top[start:]], dtype=np.float64).reshape(-1, 2)
        return TokenChunk(
            columns=TokenColumns.of(token_ids, self.logprobs[start:], self._versions[start:]),
            top_ids=top[:, 0].astype("<u4").tobytes(),
            top_logprobs=top[:, 1].astype("<f4").tobytes(),
            finish_reason=self.finish_reason,
        )
