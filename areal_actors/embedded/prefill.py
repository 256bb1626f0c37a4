"""Prefill: computes the keys and values of tokens that slots hold, in batches.

Of a row with a cached prefix it computes only the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from areal_actors.embedded.batch_invariance import padded_row_count
from areal_actors.embedded.decoders import SlotDecoder
from areal_actors.embedded.slots import DecodeSlots

PREFILL_TOKENS = 2048
"""Padded tokens per prefill batch: enough for matrix products at full speed, and few enough for the memory and caches
of a CPU."""
SUFFIX_TOKENS = 512
"""Most tokens of a row that one batch adds to its cached prefix: bounds the attention mask, and what it hides."""
POSITIONS_PER_TOKEN = 8
"""Cached positions that count as one token of a batch, because attention reads a copy of them."""


def prefill(decoder: SlotDecoder, slots: DecodeSlots, rows: Sequence[int], *, equal: bool) -> int:
    """Compute what the KV cache of these rows lacks of all their tokens but the last.

    Returns the number of tokens computed.
    Tokens without a cached prefix are computed in batches of similar or `equal` length.
    """
    chosen = np.array(rows, dtype=np.intp)
    missing = slots.lengths[chosen] - 1 - slots.cached[chosen]
    chosen = chosen[missing > 0]
    begun = slots.cached[chosen] > 0
    _prefill_whole(decoder, slots, chosen[~begun], equal=equal)
    _extend(decoder, slots, chosen[begun])
    return int(missing.sum())


def _prefill_whole(decoder: SlotDecoder, slots: DecodeSlots, rows: NDArray[np.intp], *, equal: bool) -> None:
    lengths = slots.lengths[rows] - 1
    for batch in prefill_batches(lengths.tolist(), PREFILL_TOKENS, equal=equal):
        members, longest = rows[batch].tolist(), int(lengths[batch].max())
        if decoder.kv_cache.batch_invariant:
            longest = padded_row_count(longest)
        # Padding of a row is left over from an earlier request: its results are never read.
        decoder.prefill(members, slots.tokens[members, :longest])
    slots.cached[rows] = lengths


def _extend(decoder: SlotDecoder, slots: DecodeSlots, rows: NDArray[np.intp]) -> None:
    """Compute the rest of rows that have a cached prefix, at most `SUFFIX_TOKENS` of each at a time."""
    while len(rows):
        starts = slots.cached[rows]
        counts = np.minimum(slots.lengths[rows] - 1 - starts, SUFFIX_TOKENS)
        costs = counts + (starts + counts) // POSITIONS_PER_TOKEN
        for batch in prefill_batches(costs.tolist(), PREFILL_TOKENS):
            places = starts[batch, None] + np.arange(counts[batch].max())
            # Padding may lie beyond the context; any token serves.
            token_ids = slots.tokens[rows[batch, None], np.minimum(places, slots.tokens.shape[1] - 1)]
            decoder.extend(rows[batch].tolist(), token_ids, starts[batch], counts[batch])
        slots.cached[rows] += counts
        rows = rows[slots.cached[rows] < slots.lengths[rows] - 1]


def prefill_batches(lengths: Sequence[int], budget: int, *, equal: bool = False) -> list[list[int]]:
    """Indices of sequences in batches of similar (or `equal`) length.

    Each has at most `budget` padded tokens, or is a single sequence.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Lengths ascend, so the newest sequence is the longest of its batch and determines the padding.
        if (
            not batches
            or (len(batches[-1]) + 1) * lengths[index] > budget
            or (equal and lengths[batches[-1][0]] < lengths[index])
        ):
            batches.append([])
        batches[-1].append(index)
    return batches
