"""The attention mask of a prefix tree as a block mask of flex_attention (Dong et al. 2024, https://arxiv.org/abs/2412.05496).

A token sees its ancestors in the tree, and itself. In a depth-first order of the tokens, the descendants of a token are
an interval, so the mask is two comparisons for each pair. Blocks of 128 × 128 pairs are classified on the CPU, once for
each micro-batch: those without a visible pair are skipped, those of which every pair is visible are not masked. No
matrix of pairs exists anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from areal_actors.training.packing.prefix_tree import PrefixTree, SharedPrefixGroup

BLOCK = 128
"""Tokens per side of a block: the kernels' default."""

Ranges = Sequence[tuple[int, int]]
Indices = NDArray[np.int64]
Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""True for visible pairs: of batch, head, query and key."""


def block_mask(
    tree: PrefixTree, device: torch.device, queries: Indices | None = None, window: int | None = None
) -> BlockMask:
    """Returns the mask of a tree's tokens.

    Args:
        tree: the tokens; all are keys.
        device: device of the mask.
        queries: int64 `[queries]`: tokens that attend, ascending; None for all.
        window: tokens that each attends to, the last ones and itself; None for all.
    """
    tokens = len(tree.token_ids)
    chosen = np.arange(tokens) if queries is None else queries
    entries, exits = depth_first_intervals(tree.groups, tokens)
    asking, begins, ends = (torch.from_numpy(column).to(device) for column in (entries[chosen], entries, exits))

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        entry = asking[query]
        return (begins[key] <= entry) & (entry < ends[key])

    sees: Sees = visible
    partly, whole = visible_blocks(tree.groups, chosen, tokens)
    if window is not None:
        sees = _within(
            sees, torch.from_numpy(tree.depths[chosen]).to(device), torch.from_numpy(tree.depths).to(device), window
        )
        nearest, farthest = _distances(tree.depths[chosen], tree.depths)
        partly, whole = partly & (nearest < window), whole & (farthest < window)
    partial_counts, partial = _list_blocks(partly & ~whole, device)
    whole_counts, wholes = _list_blocks(whole, device)
    return BlockMask.from_kv_blocks(
        partial_counts,
        partial,
        whole_counts,
        wholes,
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(len(chosen), tokens),
    )


def _within(sees: Sees, asking: Tensor, asked: Tensor, window: int) -> Sees:
    """Restricts a mask to keys that lie fewer than `window` positions before the query."""

    def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(batch, head, query, key) & (asking[query] - asked[key] < window)

    return near


def _distances(asking: Indices, asked: Indices) -> tuple[Indices, Indices]:
    """Smallest and largest distance of the positions in each block: int64 `[query blocks, key blocks]` each."""
    low, high = (_of_blocks(asking, take) for take in (np.minimum, np.maximum))
    first, last = (_of_blocks(asked, take) for take in (np.minimum, np.maximum))
    return low[:, None] - last, high[:, None] - first


def _of_blocks(column: Indices, take: np.ufunc) -> Indices:
    reduced: Indices = take.reduceat(column, np.arange(0, len(column), BLOCK))
    return reduced


def depth_first_intervals(groups: Sequence[SharedPrefixGroup], tokens: int) -> tuple[Indices, Indices]:
    """Place of each token in a depth-first order of the tree, and the place after its last descendant.

    int64 `[tokens]` each.
    A branch's tokens are followed by the branches that begin at them, the last first.
    """
    branches = sorted((len_before(group), branch, parent_of(group)) for group in groups for branch in group.branches)
    sizes = np.ones(tokens, dtype=np.int64)
    for _, (first, last), parent in reversed(branches):
        sizes[first:last] = np.cumsum(sizes[first:last][::-1])[::-1]
        if parent >= 0:
            sizes[parent] += sizes[first]
    entries, free = np.empty(tokens, dtype=np.int64), np.empty(tokens + 1, dtype=np.int64)
    free[-1] = 0  # before the branches that begin a sequence, whose parent is -1
    for _, (first, last), parent in branches:
        entries[first:last] = free[parent] + np.arange(last - first)
        free[parent] += sizes[first]
        free[first:last] = entries[first:last] + 1 + np.append(sizes[first + 1 : last], 0)
    return entries, entries + sizes


def len_before(group: SharedPrefixGroup) -> int:
    """Number of tokens before the branches of a group."""
    return sum(last - first for first, last in group.context)


def parent_of(group: SharedPrefixGroup) -> int:
    """The token before the branches of a group; -1 if they begin a sequence."""
    return group.context[-1][1] - 1 if group.context else -1


def visible_blocks(
    groups: Sequence[SharedPrefixGroup], queries: Indices, tokens: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Blocks of which some, and of which all pairs are visible: bool `[query blocks, key blocks]` each."""
    shape = -(-len(queries) // BLOCK), -(-tokens // BLOCK)
    visible, pairs = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64)
    for group in groups:
        context = _overlaps(group.context, shape[1])
        for first, last in group.branches:
            begin, end = (int(place) for place in np.searchsorted(queries, (first, last)))
            for row in range(begin // BLOCK, -(-end // BLOCK) if begin < end else 0):
                low, high = max(begin, row * BLOCK), min(end, (row + 1) * BLOCK)
                visible[row] |= context + _overlaps([(first, int(queries[high - 1]) + 1)], shape[1]) > 0
                pairs[row] += (high - low) * (context + _overlaps([(first, int(queries[low]) + 1)], shape[1]))
    return visible, pairs == BLOCK * BLOCK


def _overlaps(ranges: Iterable[tuple[int, int]], blocks: int) -> Indices:
    """Tokens of the ranges in each block: int64 `[blocks]`."""
    begins = np.arange(blocks) * BLOCK
    overlaps = np.zeros(blocks, dtype=np.int64)
    for first, last in ranges:
        overlaps += np.clip(np.minimum(begins + BLOCK, last) - np.maximum(begins, first), 0, None)
    return overlaps


def _list_blocks(blocks: NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """The chosen blocks of each row.

    How many, int32 `[1, 1, rows]`, and their numbers before all others, int32 `[1, 1, rows, columns]`.
    """
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    counts = blocks.sum(1, dtype=np.int32)
    return torch.from_numpy(counts).to(device)[None, None], torch.from_numpy(order).to(device)[None, None]
