"""A prefix tree on a device: how its chains lie, and what attends to what in which call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.steps.prefix_tree import PrefixTree, SharedPrefixGroup

FULL = 0.75
"""Pieces are padded together if the shortest has at least this share of the longest's tokens."""
SHORT = 16
"""Pieces of at most so many tokens are padded together anyway."""
PIECE = 128
"""A chain attends to itself in pieces of so many tokens: torch's kernels compute half of what a causal mask hides, and all below 512."""
GAP = 24
"""So many neighbours whose hidden states nobody outputs are left out of the last block; fewer cost less than one call more."""
LEAST_UNREAD = 0.1
"""The share of tokens that must be left out of the last block for this to be worth it."""


class PaddedRanges(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of tokens of like length, padded on the right to `[rows, width]` slots."""

    rows: int
    width: int
    begin: int | None
    """Of ranges that fill all slots and are neighbours: the first token. Then nothing needs to be moved."""
    tokens: Tensor
    """int64 `[tokens]`: the tokens of the ranges."""
    slots: Tensor
    """int64 `[tokens]`: where each of them stands."""
    filled: Tensor
    """int64 `[rows * width]`: the token in each slot; any one where there is none."""
    empty: Tensor
    """int64: slots without a token."""

    def pad(self, column: Tensor, filling: float | None = None) -> Tensor:
        """Entries `[all tokens, heads, size]` as `[rows, heads, width, size]`; empty slots hold `filling`, or anything."""
        if self.begin is not None:
            padded = column[self.begin : self.begin + len(self.tokens)]
        else:
            padded = column.index_select(0, self.filled)
            if filling is not None:
                padded.index_fill_(0, self.empty, filling)
        return padded.view(self.rows, self.width, *column.shape[1:]).transpose(1, 2)

    def unpad(self, padded: Tensor, column: Tensor) -> None:
        """Put entries `[rows, heads, width, size]` back into a column `[all tokens, heads, size]`."""
        entries = padded.transpose(1, 2).reshape(-1, *column.shape[1:])
        if self.begin is not None:
            column[self.begin : self.begin + len(entries)] = entries
        else:
            column.index_copy_(0, self.tokens, entries.index_select(0, self.slots))


class AttentionSpan(msgspec.Struct, frozen=True):
    """Queries that see all of these tokens."""

    queries: tuple[int, int]
    """The first query and the one after the last."""
    context: tuple[tuple[int, int], ...]
    """Ranges of tokens."""


class AttentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of which attention is made."""

    buckets: tuple[tuple[PaddedRanges, PaddedRanges], ...]
    """Pieces of chains that attend to themselves, causally: where they lie among the queries, and among the keys. Every query is in one."""
    spans: tuple[AttentionSpan, ...]
    """What queries see beside their own piece."""
    whole: bool
    """Whether every token is a query."""


class OutputPositions(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of the last block: those whose hidden states are read, and few between them."""

    tokens: Tensor
    """int64 `[reads]`: which they are, ascending."""
    indices: Tensor
    """int64 `[all tokens]`: where each of them stands among these; any number for others."""
    plan: AttentionPlan


class Chains(msgspec.Struct, frozen=True, kw_only=True):
    """The chains of a micro-batch, their tokens one after another."""

    depths: Tensor
    """int64 `[tokens]`: position of each token in its sequences."""
    families: tuple[SharedPrefixGroup, ...]
    """All chains, those with one context together."""
    plan: AttentionPlan
    outputs: OutputPositions | None = None
    """None if the last block is to compute all tokens."""

    def unrolled(self) -> tuple[Tensor, Tensor]:
        """Every chain behind its context.

        Returns:
            int64 `[chains, width]`: the tokens of each, padded on the right with any token.
            int64 `[tokens]`: where each token stands in its chain's row, in the flattened table.
        """
        context = [[token for first, last in family.context for token in range(first, last)] for family in self.families]
        paths = [before + list(range(*chain)) for family, before in zip(self.families, context, strict=True) for chain in family.chains]
        width = max(map(len, paths))
        table = torch.tensor([path + path[:1] * (width - len(path)) for path in paths])
        slots = [
            row * width + at
            for row, (before, chain) in enumerate(
                (before, chain) for family, before in zip(self.families, context, strict=True) for chain in family.chains
            )
            for at in range(len(before), len(before) + chain[1] - chain[0])
        ]
        device = self.depths.device
        return table.to(device), torch.tensor(slots).to(device)

    @classmethod
    def of(cls, tree: PrefixTree, device: torch.device, read: NDArray[np.int64] | None = None) -> Chains:
        """Prepare a tree for attention.

        Args:
            tree: the chains.
            device: where the tensors go.
            read: the tokens whose hidden states are read in the end, in any order; without it all are.
        """
        whole = [[[chain] for chain in family.chains] for family in tree.groups]
        return cls(
            depths=torch.from_numpy(tree.depths).to(device),
            families=tree.groups,
            plan=_plan(tree.groups, whole, len(tree.depths), device),
            outputs=None if read is None else _output_positions(tree, read, device),
        )


def _output_positions(tree: PrefixTree, read: NDArray[np.int64], device: torch.device) -> OutputPositions | None:
    wanted = np.unique(read)
    stretches = [[_stretches(chain, wanted) for chain in family.chains] for family in tree.groups]
    tokens = np.concatenate([np.arange(*stretch) for family in stretches for chain in family for stretch in chain])
    if len(tokens) > (1 - LEAST_UNREAD) * len(tree.depths):
        return None
    places = np.zeros(len(tree.depths), dtype=np.int64)
    places[tokens] = np.arange(len(tokens))
    return OutputPositions(
        tokens=torch.from_numpy(tokens).to(device),
        indices=torch.from_numpy(places).to(device),
        plan=_plan(tree.groups, stretches, len(tree.depths), device),
    )


def _stretches(chain: tuple[int, int], wanted: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The chain without what need not be computed."""
    first, last = np.searchsorted(wanted, chain)
    found = wanted[first:last]
    if not len(found):
        return []
    before = np.diff(found, prepend=chain[0] - 1) - 1  # how many nobody outputs before each
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
    """For each chain of each family the stretches of it that are queries, which lie one after another."""
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
    """Pieces of as many tokens as kernels like, the last one of half as many to half as many more."""
    begins = range(first, max(first + 1, last - PIECE // 2), PIECE)
    return zip(begins, [*begins[1:], last], strict=True)


def _alike(pieces: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Pieces (first query, first key, length) of like length together."""
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
    """Of ranges (first, length), the longest first."""
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
