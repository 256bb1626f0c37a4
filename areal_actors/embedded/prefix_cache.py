"""Prefix cache: a prompt continues from the KV cache of an ended completion with the same first tokens.

So a turn of a conversation computes only the tokens after the turn before. Nothing is allocated: tokens and KV cache
stay in the slot until another request needs it, the least recently used first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from areal_actors.embedded.kv_cache import KVCache
from areal_actors.embedded.slots import DecodeRequest, DecodeSlots

MIN_PREFIX = 32
"""Shortest prefix, in tokens, that is reused: for a shorter one, finding and copying it takes longer than computing
it."""
RUNNING = np.iinfo(np.int64).max
"""Rank of rows in use, which are never replaced."""


class PrefixCache:
    """Assigns rows to requests, with the longest prefix of the prompt that any row holds."""

    def __init__(self, slots: DecodeSlots, kv_cache: KVCache) -> None:
        self._slots = slots
        self._kv_cache = kv_cache
        self._enabled = not kv_cache.batch_invariant
        self._ranks = np.zeros(slots.capacity, dtype=np.int64)
        """By row, the smallest to be replaced first: 0 if nothing is cached, else when it was last used; or
        `RUNNING`."""
        self._clock = 0

    def place(self, requests: Iterable[DecodeRequest]) -> None:
        """Assign a free KV-cache slot to each request, reusing the cached prefix: see `DecodeSlots.cached`."""
        # Continued rows come first, so that no other request of this step replaces them.
        new_requests = [request for request in requests if not self._place_continued(request)]
        for request in new_requests:
            rows, length = self._find(request.prompt_ids)
            if not length:
                self.place_empty(request)
                continue
            source = int(rows[0])
            self._touch(source)
            row = int(self._ranks.argmin())
            if row != source:
                self._kv_cache.copy(source, row, length)
            self._add(row, request, length)

    def place_empty(self, request: DecodeRequest) -> None:
        """Assign a free KV-cache slot to a request, with nothing cached."""
        self._add(int(self._ranks.argmin()), request, 0)

    def retain(self, rows: Sequence[int]) -> None:
        """Free the rows of ended completions; keep the KV cache of their tokens but the last, which was never fed."""
        self._slots.remove(rows)
        for row in rows:
            self._ranks[row] = 0
            if self._enabled:
                self._touch(row)
            else:
                self._slots.cached[row] = 0

    def compact(self) -> None:
        """Move running completions to the first rows."""
        slots = self._slots
        beyond = sorted(row for row in slots.running if row >= len(slots))
        if not beyond:
            return
        sources = np.array(beyond, dtype=np.int64)
        targets = np.array([row for row in range(len(slots)) if row not in slots.running], dtype=np.int64)
        self._kv_cache.exchange_rows(sources, targets, slots.cached)
        slots.move(sources, targets)
        both, exchanged = np.concatenate((targets, sources)), np.concatenate((sources, targets))
        self._ranks[both] = self._ranks[exchanged]

    def drop(self) -> None:
        """Forget all keys and values, which belong to earlier weights.

        Those of running completions must be computed anew.
        """
        self._slots.cached[:] = 0
        self._ranks[self._ranks != RUNNING] = 0

    def _place_continued(self, request: DecodeRequest) -> bool:
        """Assign a free KV-cache slot all of whose cached tokens begin the prompt; False if there is none."""
        rows, length = self._find(request.prompt_ids)
        for row in rows.tolist():
            if row not in self._slots.running and self._slots.cached[row] == length:
                self._add(row, request, length)
                return True
        return False

    def _find(self, prompt_ids: NDArray[np.int64]) -> tuple[NDArray[np.intp], int]:
        """Rows that hold the longest prefix of a prompt, and its length.

        None and 0 if that is shorter than `MIN_PREFIX`.
        The last token of the prompt is left to the next decode step. Rows that differ early are compared no further.
        """
        tokens, cached, limit = self._slots.tokens, self._slots.cached, len(prompt_ids) - 1
        start, end = 0, MIN_PREFIX
        if not self._enabled or limit < MIN_PREFIX:
            return np.empty(0, dtype=np.intp), 0
        rows = np.flatnonzero((tokens[:, 0] == prompt_ids[0]) & (cached >= MIN_PREFIX))
        rows = rows[(tokens[rows, :end] == prompt_ids[:end]).all(1)]
        if not len(rows):
            return rows, 0
        while end < limit:
            start, end = end, min(2 * end, limit)
            same = tokens[rows, start:end] == prompt_ids[start:end]
            equal = np.where(same.all(1), end, start + same.argmin(1))
            equal = np.minimum(equal, cached[rows])
            longest = int(equal.max())
            rows = rows[equal == longest]
            if longest < end:
                return rows, longest
        return rows, end

    def _add(self, row: int, request: DecodeRequest, cached: int) -> None:
        self._slots.add(row, request)
        self._slots.cached[row] = cached
        self._ranks[row] = RUNNING

    def _touch(self, row: int) -> None:
        """Make a row the last to be replaced."""
        if self._ranks[row] != RUNNING:
            self._clock += 1
            self._ranks[row] = self._clock
