"""A prefix tree packed on a device: the layout of its chains, and the attention calls or the mask that cover them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from areal_actors.training.packing.block_mask import block_mask
from areal_actors.training.packing.prefix_tree import PrefixTree, SharedPrefixGroup

FULL = 0.75
"""Pieces are padded together if the shortest has at least this fraction of the longest's tokens."""
SHORT = 16
"""Pieces of at most this many tokens are always padded together."""
PIECE = 128
"""Tokens per piece of a chain's causal self-attention: torch's kernels compute half of what a causal mask hides, and all below 512."""
GAP = 24
"""Minimum run of adjacent tokens without output that the last block skips; a shorter one costs less than an additional call."""
MIN_SKIPPED_SHARE = 0.1
"""Minimum share of tokens that the last block must skip for this to pay."""
PLANNED_DEVICES = ("cpu",)
"""Devices whose attention is planned as calls of torch's kernels; the others compute it in one call, with a block mask."""


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
        """Entries `[all tokens, heads, size]` as `[rows, heads, width, size]`; empty slots hold `filling`, or arbitrary values."""
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
    """Queries that attend to all tokens of a context."""

    queries: tuple[int, int]
    """Range `[first, end)` of queries."""
    context: tuple[tuple[int, int], ...]
    """Ranges of tokens."""


class AttentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel calls that compute the attention."""

    buckets: tuple[tuple[PaddedRanges, PaddedRanges], ...]
    """Pieces of chains with causal self-attention: their ranges among the queries and among the keys. Every query is in one."""
    spans: tuple[AttentionSpan, ...]
    """Attention of queries to tokens outside of their own piece."""
    whole: bool
    """True if every token is a query."""


class OutputPositions(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that the last block computes: those whose hidden states are used, and short gaps between them."""

    tokens: Tensor
    """int64 `[outputs]`: their indices, ascending."""
    indices: Tensor
    """int64 `[all tokens]`: index of each token among the outputs; arbitrary for others."""
    plan: AttentionPlan | BlockMask
    """As `PackedTree.plan`, for these queries."""


class PackedTree(msgspec.Struct, frozen=True, kw_only=True):
    """The chains of a micro-batch, packed without padding."""

    depths: Tensor
    """int64 `[tokens]`: position of each token in its sequences."""
    plan: AttentionPlan | BlockMask
    """The calls that compute the attention, or the mask of a single call; see `PLANNED_DEVICES`."""
    outputs: OutputPositions | None = None
    """None if the last block computes all tokens."""

    @classmethod
    def of(cls, tree: PrefixTree, device: torch.device, read: NDArray[np.int64] | None = None) -> PackedTree:
        """Prepare a tree for attention.

        Args:
            tree: the chains.
            device: device of the tensors.
            read: tokens whose final hidden states are used, in any order; None for all.
        """
        whole = [[[chain] for chain in family.chains] for family in tree.groups]
        return cls(
            depths=torch.from_numpy(tree.depths).to(device),
            plan=_plan(tree.groups, whole, len(tree.depths), device) if device.type in PLANNED_DEVICES else block_mask(tree, device),
            outputs=None if read is None else _output_positions(tree, read, device),
        )


def _output_positions(tree: PrefixTree, read: NDArray[np.int64], device: torch.device) -> OutputPositions | None:
    wanted = np.unique(read)
    stretches = [[_stretches(chain, wanted) for chain in family.chains] for family in tree.groups]
    tokens = np.concatenate([np.arange(*stretch) for family in stretches for chain in family for stretch in chain])
    if len(tokens) > (1 - MIN_SKIPPED_SHARE) * len(tree.depths):
        return None
    places = np.zeros(len(tree.depths), dtype=np.int64)
    places[tokens] = np.arange(len(tokens))
    planned = device.type in PLANNED_DEVICES
    return OutputPositions(
        tokens=torch.from_numpy(tokens).to(device),
        indices=torch.from_numpy(places).to(device),
        plan=_plan(tree.groups, stretches, len(tree.depths), device) if planned else block_mask(tree, device, tokens),
    )


def _stretches(chain: tuple[int, int], wanted: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of the chain that the last block computes."""
    first, last = np.searchsorted(wanted, chain)
    found = wanted[first:last]
    if not len(found):
        return []
    before = np.diff(found, prepend=chain[0] - 1) - 1  # unused tokens before each
    begins = np.flatnonzero(before >= GAP)
    if before[0] < GAP:
        begins = np.concatenate([[0], begins])
    starts = found[begins]
    if before[0] < GAP:
        starts[0] = chain[0]
    return list(zip(starts.tolist(), (found[np.append(begins[1:], len(found)) - 1] + 1).tolist(), strict=True))


def _plan(
    families: Sequence[SharedPrefixGroup], stretches: Sequence[Sequence[Sequence[tuple[int, int]]]], tokens: int, device: torch.device
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
    return AttentionPlan(buckets=tuple(_bucket(part, device, whole=whole) for part in _alike(pieces)), spans=tuple(spans), whole=whole)


def _cut(first: int, last: int) -> Iterable[tuple[int, int]]:
    """Split into pieces of `PIECE` tokens; the last has between half and one and a half times as many."""
    begins = range(first, max(first + 1, last - PIECE // 2), PIECE)
    return zip(begins, [*begins[1:], last], strict=True)


def _alike(pieces: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Group pieces (first query, first key, length) by similar length."""
    parts: list[list[tuple[int, int, int]]] = []
    for piece in sorted(pieces, key=lambda piece: (-piece[2], piece[0])):
        width = parts[-1][0][2] if parts else 0
        if piece[2] >= FULL * width > 0 or 0 < width <= SHORT:
            parts[-1].append(piece)
        else:
            parts.append([piece])
    return parts


def _bucket(part: Sequence[tuple[int, int, int]], device: torch.device, *, whole: bool) -> tuple[PaddedRanges, PaddedRanges]:
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
