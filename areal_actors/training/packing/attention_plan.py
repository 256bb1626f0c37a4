"""The kernel calls that compute the attention of a prefix tree on a CPU, over all earlier tokens or over a window of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from areal_actors.training.packing.prefix_tree import SharedPrefixGroup

FULL = 0.75
"""Pieces are padded together if the shortest has at least this fraction of the longest's tokens."""
SHORT = 16
"""Pieces of at most this many tokens are always padded together."""
PIECE = 128
"""Tokens per piece of a chain's causal self-attention: torch's kernels compute half of what a causal mask hides, and
all below 512."""


class PaddedRanges(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of tokens of similar length, padded on the right to `[rows, width]` slots."""

    rows: int
    width: int
    begin: int | None
    """First token if the ranges are adjacent and fill all slots: then nothing is copied."""
    tokens: Tensor
    """int64 `[tokens]`: the tokens of the ranges."""
    slots: Tensor
    """int64 `[tokens]`: slot of each of them."""
    filled: Tensor
    """int64 `[rows * width]`: token in each slot; an arbitrary one in empty slots."""
    empty: Tensor
    """int64: slots without a token."""

    def pad(self, column: Tensor, filling: float | None = None) -> Tensor:
        """Entries `[all tokens, heads, size]` as `[rows, heads, width, size]`.

        Empty slots hold `filling`, or arbitrary values.
        """
        if self.begin is not None:
            padded = column[self.begin : self.begin + len(self.tokens)]
        else:
            padded = column.index_select(0, self.filled)
            if filling is not None:
                padded.index_fill_(0, self.empty, filling)
        return padded.view(self.rows, self.width, *column.shape[1:]).transpose(1, 2)

    def unpad(self, padded: Tensor, column: Tensor) -> None:
        """Write entries `[rows, heads, width, size]` back into a column `[all tokens, heads, size]`."""
        entries = padded.transpose(1, 2).reshape(-1, *column.shape[1:])
        if self.begin is not None:
            column[self.begin : self.begin + len(entries)] = entries
        else:
            column.index_copy_(0, self.tokens, entries.index_select(0, self.slots))


class AttentionSpan(msgspec.Struct, frozen=True):
    """Queries that attend to the tokens of a context."""

    queries: tuple[int, int]
    """Range `[first, end)` of queries."""
    context: tuple[tuple[int, int], ...]
    """Ranges of tokens."""
    window: int | None = None
    """Tokens that a query attends to, itself included; None if all of the context is within it. The context then ends
    just before the first query, and positions of both are adjacent."""


class AttentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel calls that compute the attention."""

    buckets: tuple[tuple[PaddedRanges, PaddedRanges], ...]
    """Pieces of chains with causal self-attention: their ranges among the queries and among the keys. Every query is in
    one."""
    spans: tuple[AttentionSpan, ...]
    """Attention of queries to tokens outside of their own piece."""
    whole: bool
    """True if every token is a query."""


def make_plan(
    families: Sequence[SharedPrefixGroup],
    stretches: Sequence[Sequence[Sequence[tuple[int, int]]]],
    tokens: int,
    device: torch.device,
) -> AttentionPlan:
    """Plan the calls; `stretches` are, for each chain of each family, the ranges of it that are queries, in order."""
    pieces: list[tuple[int, int, int]] = []
    spans = []
    queries = 0
    for family, inner in zip(families, stretches, strict=True):
        begin = queries
        for (first, _), parts in zip(family.chains, inner, strict=True):
            for piece, end in (cut for part in parts for cut in _cut(*part)):
                pieces.append((queries, piece, end - piece))
                if piece > first:
                    spans.append(AttentionSpan((queries, queries + end - piece), ((first, piece),)))
                queries += end - piece
        if family.context and queries > begin:
            spans.append(AttentionSpan((begin, queries), family.context))
    whole = queries == tokens
    return AttentionPlan(
        buckets=tuple(_bucket(part, device, whole=whole) for part in _bucket_by_length(pieces)),
        spans=tuple(spans),
        whole=whole,
    )


def make_window_plan(families: Sequence[SharedPrefixGroup], window: int, device: torch.device) -> AttentionPlan:
    """Plan the calls of layers in which a token attends to the last `window` tokens, itself included.

    All tokens are queries.
    A piece is shorter than the window, so that within it nothing is hidden but what follows.
    """
    size = max(1, min(PIECE, 2 * (window - 1) // 3))
    pieces, spans = [], []
    for family in families:
        for first, last in family.chains:
            for piece, end in _cut(first, last, size):
                pieces.append((piece, piece, end - piece))
                context = _last_tokens((*family.context, (first, piece)), window - 1)
                if context:
                    seen = sum(stop - start for start, stop in context)
                    spans.append(
                        AttentionSpan((piece, end), context, window if end - piece - 1 + seen >= window else None)
                    )
    return AttentionPlan(
        buckets=tuple(_bucket(part, device, whole=True) for part in _bucket_by_length(pieces)),
        spans=tuple(spans),
        whole=True,
    )


def _last_tokens(ranges: Sequence[tuple[int, int]], most: int) -> tuple[tuple[int, int], ...]:
    """The last tokens of adjacent ranges, at most this many."""
    kept: list[tuple[int, int]] = []
    for first, last in reversed(ranges):
        start = max(first, last - most)
        if start < last:
            kept.append((start, last))
            most -= last - start
    return tuple(reversed(kept))


def _cut(first: int, last: int, size: int = PIECE) -> Iterable[tuple[int, int]]:
    """Split into pieces of `size` tokens; the last has between half and one and a half times as many."""
    begins = range(first, max(first + 1, last - size // 2), size)
    return zip(begins, [*begins[1:], last], strict=True)


def _bucket_by_length(pieces: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Group pieces (first query, first key, length) by similar length."""
    parts: list[list[tuple[int, int, int]]] = []
    for piece in sorted(pieces, key=lambda piece: (-piece[2], piece[0])):
        width = parts[-1][0][2] if parts else 0
        if piece[2] >= FULL * width > 0 or 0 < width <= SHORT:
            parts[-1].append(piece)
        else:
            parts.append([piece])
    return parts


def _bucket(
    part: Sequence[tuple[int, int, int]], device: torch.device, *, whole: bool
) -> tuple[PaddedRanges, PaddedRanges]:
    keys = _padded_ranges([(key, length) for _, key, length in part], device)
    return (keys if whole else _padded_ranges([(query, length) for query, _, length in part], device)), keys


def _padded_ranges(ranges: Sequence[tuple[int, int]], device: torch.device) -> PaddedRanges:
    """Pad ranges (first, length), the longest first."""
    width = ranges[0][1]
    firsts, lengths = np.array(ranges).T
    tokens = np.repeat(firsts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    slots = np.repeat(np.arange(len(ranges)) * width - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    filled = np.full(len(ranges) * width, firsts[0])
    filled[slots] = tokens
    taken = np.zeros(len(filled), dtype=bool)
    taken[slots] = True
    dense = len(filled) == len(tokens) and bool((np.diff(tokens) == 1).all())
    tensors = {
        name: torch.from_numpy(array).to(device)
        for name, array in {"tokens": tokens, "slots": slots, "filled": filled, "empty": np.flatnonzero(~taken)}.items()
    }
    return PaddedRanges(rows=len(ranges), width=width, begin=int(firsts[0]) if dense else None, **tensors)
