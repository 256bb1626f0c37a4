"""Tokens of one completion over all its requests to a server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from areal_actors.core.errors import EngineError
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import SamplingParams, TokenColumns
from areal_actors.generation.engine import PromptImages, TokenChunk
from areal_actors.generation.servers.dialect import SegmentPart
from areal_actors.tokenization.tokenizer import ChatTokenizer, TextStream
from areal_actors.tokenization.tool_parsers.grammar import resolve_delimiters

MAX_ABORTS = 3
"""Times that a server may end a completion by itself."""


class RunningSegment:
    """A segment at the server."""

    def __init__(self, request_id: str, *, drains: bool) -> None:
        self.request_id = request_id
        self.drains = drains
        """True if it has to end by itself before weights change."""
        self.ended = False
        self.ordered = False
        """True if it was ended by this engine."""


class ServerCompletion:
    """Tokens of one completion over all its segments."""

    def __init__(
        self,
        prompt_ids: list[int],
        sampling: SamplingParams,
        tokenizer: ChatTokenizer,
        resumed_tokens: int,
        *,
        images: PromptImages | None = None,
        routes: RouteShape | None = None,
        routes_from: int | None = None,
    ) -> None:
        """`routes`: the mixtures of experts to report, from the position `routes_from` on."""
        self.images = images
        """Images of the prompt."""
        self.routed = None if routes is None else routes_from
        """Position from which experts are still missing; None if none are wanted."""
        self._shape, self._routes = routes, b""
        self.token_ids = prompt_ids
        """Prompt, and all tokens sampled so far."""
        self.sampling = replace(
            sampling, constraint=sampling.constraint and resolve_delimiters(sampling.constraint, tokenizer.special_id)
        )
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

    def rescore(self, logprobs: list[float]) -> None:
        """Replace the log-probabilities of all tokens.

        Raises:
            EngineError: there are not as many as tokens.
        """
        if len(logprobs) != len(self.logprobs):
            raise EngineError(
                f"the server reports {len(logprobs)} log-probabilities of {len(self.logprobs)} tokens that were scored"
                " again"
            )
        self.logprobs = logprobs

    def check_abort(self, running: RunningSegment, title: str) -> None:
        """Raises EngineError if the server ends this completion repeatedly, or if it cannot be continued."""
        if running.drains:
            raise EngineError(f"{title} ended a completion that cannot be continued exactly")
        self.aborts += not running.ordered
        if self.aborts > MAX_ABORTS:
            raise EngineError(f"{title} ended the same completion {self.aborts} times without an order to")

    def lacks_routes(self, since: int) -> bool:
        """True if there are more than `since` tokens, and wanted experts of positions before the last are missing."""
        return self.routed is not None and self.routed < len(self.token_ids) - 1 and len(self.token_ids) > since

    def add_routes(self, chosen: bytes) -> None:
        """Add the experts of the positions from `routed` on, int32 `[positions, blocks, top_k]`.

        Those of dropped tokens are left out.
        """
        if self._shape is None or self.routed is None:
            return
        size = self._shape.position_bytes
        routes = self._shape.pack_blocks(chosen)[: (len(self.token_ids) - 1 - self.routed) * size]
        self._routes += routes
        self.routed += len(routes) // size

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
        routes, self._routes = self._routes, b""
        return TokenChunk(
            columns=TokenColumns.of(token_ids, self.logprobs[start:], self._versions[start:]),
            top_ids=top[:, 0].astype("<u4").tobytes(),
            top_logprobs=top[:, 1].astype("<f4").tobytes(),
            routes=routes,
            finish_reason=self.finish_reason,
        )
