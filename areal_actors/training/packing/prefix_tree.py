"""Prefix tree of token sequences, so that each shared prefix is computed once.

Sequences become branches: the longest sequence is one branch; every other branch starts where its sequence diverges
from a longer one, and takes the tokens before as its context. So a group's prompt is in one branch, sequences that
contain each other are one branch, and a conversation tree has as many branches as leaves. Causal attention gives a
shared token the same hidden state in all of its sequences, so the result is the same function of the weights.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

MIN_FORK_TOKENS = 4
"""Minimum of common tokens before a fork; sequences that diverge from a branch within this many tokens do so at the
first such position."""

Ids = NDArray[np.int64]


class SharedPrefixGroup(msgspec.Struct, frozen=True):
    """Branches with the same context; their tokens are adjacent."""

    branches: tuple[tuple[int, int], ...]
    """Token range `[first, end)` of each branch."""
    context: tuple[tuple[int, int], ...]
    """Ranges of the tokens before them, in order of position; empty for branches that start a sequence."""

    @property
    def tokens(self) -> tuple[int, int]:
        """Token range `[first, end)` of all branches."""
        return self.branches[0][0], self.branches[-1][1]

    def shift(self, by: int) -> SharedPrefixGroup:
        """Returns the group with all token indices increased by `by`."""
        branches, context = (
            tuple((first + by, last + by) for first, last in ranges) for ranges in (self.branches, self.context)
        )
        return SharedPrefixGroup(branches=branches, context=context)


class PrefixTree(msgspec.Struct, frozen=True):
    """Sequences laid out as branches, one after another."""

    token_ids: Ids
    """int64 `[tokens]`: the tokens that are computed."""
    depths: Ids
    """int64 `[tokens]`: position of each in its sequences."""
    token_positions: tuple[Ids, ...]
    """For each sequence, int64 `[length]`: indices of its tokens in `token_ids`."""
    groups: tuple[SharedPrefixGroup, ...]
    """In order of their tokens; branches that start a sequence are first."""


def shared_tokens(sequences: Sequence[Ids]) -> int:
    """Number of tokens of these sequences that need not be computed."""
    return sum(int(length) for length, _ in _forks(sequences).values())


def lexicographic_order(sequences: Sequence[Ids]) -> list[int]:
    """Returns their indices in lexicographic order.

    The longest prefix shared with any other sequence is shared with a neighbour.
    """
    return sorted(range(len(sequences)), key=lambda index: sequences[index].astype(">i8").tobytes())


def common_prefix_length(left: Ids, right: Ids) -> int:
    """Length of the common prefix of two sequences, in tokens."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    first = int(different.argmax()) if length else 0
    return first if length and different[first] else length


def build_prefix_tree(sequences: Sequence[Ids]) -> PrefixTree:
    """Lay out sequences int64 `[length]` (at least one, none empty) so that each shared prefix occurs once."""
    forks = _forks(sequences)
    members: dict[tuple[int, int], list[int]] = {}
    for index, (depth, donor) in forks.items():
        if depth < len(sequences[index]):
            members.setdefault((depth, _root(forks, donor, depth)), []).append(index)
    order = sorted(members, key=lambda fork: fork[0] > 0)
    begins: dict[int, int] = {}
    total = 0
    for fork in order:
        for index in members[fork]:
            begins[index] = total
            total += len(sequences[index]) - fork[0]
    positions: list[Ids] = [np.empty(0, dtype=np.int64)] * len(sequences)
    token_ids, depths = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for index, (depth, donor) in forks.items():
        length = len(sequences[index]) - depth
        own = np.arange(length, dtype=np.int64) + begins.get(index, 0)
        positions[index] = np.concatenate([positions[donor][:depth], own]) if depth else own
        token_ids[own], depths[own] = sequences[index][depth:], np.arange(depth, depth + length)
    groups = tuple(
        SharedPrefixGroup(
            branches=tuple(
                (begins[index], begins[index] + len(sequences[index]) - depth) for index in members[depth, donor]
            ),
            context=_ranges(positions[members[depth, donor][0]][:depth]),
        )
        for depth, donor in order
    )
    return PrefixTree(token_ids=token_ids, depths=depths, token_positions=tuple(positions), groups=groups)


def join_trees(trees: Sequence[PrefixTree]) -> PrefixTree:
    """Join trees (at least one) into one, their tokens in the given order."""
    firsts = np.cumsum([0, *(len(tree.token_ids) for tree in trees)]).tolist()
    return PrefixTree(
        token_ids=np.concatenate([tree.token_ids for tree in trees]),
        depths=np.concatenate([tree.depths for tree in trees]),
        token_positions=tuple(
            positions + first for tree, first in zip(trees, firsts, strict=False) for positions in tree.token_positions
        ),
        groups=tuple(group.shift(first) for tree, first in zip(trees, firsts, strict=False) for group in tree.groups),
    )


def pack_trees(trees: Sequence[PrefixTree], budget: int) -> list[tuple[list[int], PrefixTree]]:
    """Join trees while they are within the budget of tokens; with the indices of those in each."""
    bins = first_fit_decreasing([len(tree.token_ids) for tree in trees], budget)
    return [(indices, join_trees([trees[index] for index in indices])) for indices in bins]


def first_fit_decreasing(weights: Sequence[int], budget: int) -> list[list[int]]:
    """Returns item indices in bins of at most `budget` each; items above the budget have a bin of their own.

    Items from the heaviest on, each into the first bin with room: at most 11/9 of the minimum number of bins, plus 6/9
    (Dósa 2007, https://doi.org/10.1007/978-3-540-74450-4_1).
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(weights)), key=lambda index: (-weights[index], index)):
        fit = next((number for number, left in enumerate(room) if weights[index] <= left), len(bins))
        if fit == len(bins):
            bins.append([])
            room.append(budget)
        bins[fit].append(index)
        room[fit] -= weights[index]
    return bins


def _forks(sequences: Sequence[Ids]) -> dict[int, tuple[int, int]]:
    """By sequence, longest first.

    (depth, donor) where it diverges from an earlier one; (0, itself) if it shares no prefix.
    """
    forks: dict[int, tuple[int, int]] = {}
    ranks = {index: rank for rank, index in enumerate(lexicographic_order(sequences))}
    earlier: list[tuple[int, int]] = []  # by rank: the sequence with the longest common prefix is a neighbour
    for index in sorted(range(len(sequences)), key=lambda index: (-len(sequences[index]), index)):
        at = bisect.bisect(earlier, (ranks[index], index))
        common = [
            (common_prefix_length(sequences[index], sequences[neighbour]), neighbour)
            for _, neighbour in earlier[max(0, at - 1) : at + 1]
        ]
        forks[index] = max(
            (length_and_index for length_and_index in common if length_and_index[0]),
            default=(0, index),
            key=lambda found: found[0],
        )
        earlier.insert(at, (ranks[index], index))
    return _align_forks(forks, sequences)


def _align_forks(forks: dict[int, tuple[int, int]], sequences: Sequence[Ids]) -> dict[int, tuple[int, int]]:
    """The same forks, moved to one depth where sequences diverge from one branch within few tokens."""
    depths: dict[int, int] = {}
    levels: dict[int, int] = {}
    for index in sorted(forks, key=lambda index: forks[index][0]):
        depth, donor = forks[index]
        depths[index] = depth
        if 0 < depth < len(sequences[index]):
            root = _root(forks, donor, depth)
            if depth >= levels.setdefault(root, depths[root]) + MIN_FORK_TOKENS:
                levels[root] = depth
            depths[index] = levels[root]
    return {index: (depths[index], donor) for index, (_, donor) in forks.items()}


def _root(forks: dict[int, tuple[int, int]], donor: int, depth: int) -> int:
    """The sequence whose branch holds the last of the first `depth` tokens of the donor."""
    while forks[donor][0] >= depth > 0:
        donor = forks[donor][1]
    return donor


def _ranges(positions: Ids) -> tuple[tuple[int, int], ...]:
    """Splits ascending indices into ranges of adjacent tokens."""
    if not len(positions):
        return ()
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(positions, cuts))
