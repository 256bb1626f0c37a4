"""A prefix tree packed on a device: the layout of its branches, and the attention calls or the mask that cover them."""

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

GAP = 24
"""Minimum run of adjacent tokens without output that the last block skips; a shorter one costs less than an additional
call."""
MIN_SKIPPED_SHARE = 0.1
"""Minimum share of tokens that the last block must skip for this to pay."""
PLANNED_DEVICES = ("cpu",)
"""Devices whose attention is planned as calls of torch's kernels; the others compute it in one call, with a block
mask."""
FULL = 0.75
"""Tiles are padded together if the shortest has at least this fraction of the longest's tokens."""
SHORT = 16
"""Tiles of at most this many tokens are always padded together."""
TILE = 128
"""Tokens per tile of a branch's causal self-attention: torch's kernels compute half of what a causal mask hides, and
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
    """Tiles of branches with causal self-attention: their ranges among the queries and among the keys. Every query is
    in one."""
    spans: tuple[AttentionSpan, ...]
    """Attention of queries to tokens outside of their own tile."""
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
    """The branches of a micro-batch, packed without padding."""

    depths: Tensor
    """int64 `[tokens]`: position of each token in its sequences."""
    plan: AttentionPlan | BlockMask
    """The calls that compute the attention, or the mask of a single call; see `PLANNED_DEVICES`."""
    outputs: OutputPositions | None = None
    """None if the last block computes all tokens."""
    tree: PrefixTree
    """The branches, on the host."""
    windows: dict[int | None, AttentionPlan | BlockMask] = msgspec.field(default_factory=dict)
    """Plans by window, None for layers without one, as far as layers asked for them."""

    @classmethod
    def of(cls, tree: PrefixTree, device: torch.device, read: NDArray[np.int64] | None = None) -> PackedTree:
        """Prepare a tree for attention.

        Args:
            tree: the branches.
            device: device of the tensors.
            read: tokens whose final hidden states are used, in any order; None for all.
        """
        whole = [[[branch] for branch in group.branches] for group in tree.groups]
        return cls(
            depths=torch.from_numpy(tree.depths).to(device),
            plan=(
                make_plan(tree.groups, whole, len(tree.depths), device)
                if device.type in PLANNED_DEVICES
                else block_mask(tree, device)
            ),
            outputs=None if read is None else _output_positions(tree, read, device),
            tree=tree,
        )

    def plan_for_window(self, window: int | None) -> AttentionPlan | BlockMask:
        """As `plan`, for layers in which a token attends to the last `window` tokens, itself included; None for all."""
        if window not in self.windows:
            self.windows[window] = self._make_plan(window)
        return self.windows[window]

    def _make_plan(self, window: int | None) -> AttentionPlan | BlockMask:
        if window is None or int(self.tree.depths.max()) < window:
            return self.plan
        device = self.depths.device
        if device.type in PLANNED_DEVICES:
            return make_window_plan(self.tree.groups, window, device)
        return block_mask(self.tree, device, window=window)


def _output_positions(tree: PrefixTree, read: NDArray[np.int64], device: torch.device) -> OutputPositions | None:
    wanted = np.unique(read)
    query_ranges = [[_query_ranges(branch, wanted) for branch in group.branches] for group in tree.groups]
    tokens = np.concatenate([np.arange(*span) for group in query_ranges for branch in group for span in branch])
    if len(tokens) > (1 - MIN_SKIPPED_SHARE) * len(tree.depths):
        return None
    places = np.zeros(len(tree.depths), dtype=np.int64)
    places[tokens] = np.arange(len(tokens))
    planned = device.type in PLANNED_DEVICES
    return OutputPositions(
        tokens=torch.from_numpy(tokens).to(device),
        indices=torch.from_numpy(places).to(device),
        plan=(
            make_plan(tree.groups, query_ranges, len(tree.depths), device)
            if planned
            else block_mask(tree, device, tokens)
        ),
    )


def _query_ranges(branch: tuple[int, int], wanted: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of the branch that the last block computes."""
    first, last = np.searchsorted(wanted, branch)
    read = wanted[first:last]
    if not len(read):
        return []
    before = np.diff(read, prepend=branch[0] - 1) - 1  # unused tokens before each
    begins = np.flatnonzero(before >= GAP)
    if before[0] < GAP:
        begins = np.concatenate([[0], begins])
    starts = read[begins]
    if before[0] < GAP:
        starts[0] = branch[0]
    ends = read[np.append(begins[1:], len(read)) - 1] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def make_plan(
    groups: Sequence[SharedPrefixGroup],
    query_ranges: Sequence[Sequence[Sequence[tuple[int, int]]]],
    tokens: int,
    device: torch.device,
) -> AttentionPlan:
    """Plan the calls; `query_ranges` are, for each branch of each group, its ranges that are queries, in order."""
    tiles: list[tuple[int, int, int]] = []
    spans = []
    queries = 0
    for group, ranges_by_branch in zip(groups, query_ranges, strict=True):
        begin = queries
        for (first, _), ranges in zip(group.branches, ranges_by_branch, strict=True):
            for start, end in (tile for query_range in ranges for tile in _cut_tiles(*query_range)):
                tiles.append((queries, start, end - start))
                if start > first:
                    spans.append(AttentionSpan((queries, queries + end - start), ((first, start),)))
                queries += end - start
        if group.context and queries > begin:
            spans.append(AttentionSpan((begin, queries), group.context))
    whole = queries == tokens
    return AttentionPlan(
        buckets=tuple(_bucket(bucket, device, whole=whole) for bucket in _bucket_by_length(tiles)),
        spans=tuple(spans),
        whole=whole,
    )


def make_window_plan(groups: Sequence[SharedPrefixGroup], window: int, device: torch.device) -> AttentionPlan:
    """Plan the calls of layers in which a token attends to the last `window` tokens, itself included.

    All tokens are queries.
    A tile is shorter than the window, so that within it nothing is hidden but what follows.
    """
    size = max(1, min(TILE, 2 * (window - 1) // 3))
    tiles, spans = [], []
    for group in groups:
        for first, last in group.branches:
            for start, end in _cut_tiles(first, last, size):
                tiles.append((start, start, end - start))
                context = _last_tokens((*group.context, (first, start)), window - 1)
                if context:
                    reach = end - start - 1 + sum(range_end - begin for begin, range_end in context)
                    spans.append(AttentionSpan((start, end), context, window if reach >= window else None))
    return AttentionPlan(
        buckets=tuple(_bucket(bucket, device, whole=True) for bucket in _bucket_by_length(tiles)),
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


def _cut_tiles(first: int, last: int, size: int = TILE) -> Iterable[tuple[int, int]]:
    """Split into tiles of `size` tokens; the last has between half and one and a half times as many."""
    begins = range(first, max(first + 1, last - size // 2), size)
    return zip(begins, [*begins[1:], last], strict=True)


def _bucket_by_length(tiles: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Group tiles (first query, first key, length) by similar length."""
    buckets: list[list[tuple[int, int, int]]] = []
    for tile in sorted(tiles, key=lambda tile: (-tile[2], tile[0])):
        width = buckets[-1][0][2] if buckets else 0
        if tile[2] >= FULL * width > 0 or 0 < width <= SHORT:
            buckets[-1].append(tile)
        else:
            buckets.append([tile])
    return buckets


def _bucket(
    tiles: Sequence[tuple[int, int, int]], device: torch.device, *, whole: bool
) -> tuple[PaddedRanges, PaddedRanges]:
    keys = _padded_ranges([(key, length) for _, key, length in tiles], device)
    return (keys if whole else _padded_ranges([(query, length) for query, _, length in tiles], device)), keys


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
