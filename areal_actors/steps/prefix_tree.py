"""Which beginnings sequences share, so that each is computed once.

Sequences become chains: the longest sequence is one, every other one begins where it parts from a longer one and takes
what lies before as its context. So a group's prompt stands in one chain, sequences that contain each other are one
chain, and a conversation tree is as many chains as it has leaves. Causal attention gives a shared token the same hidden
state in all of its sequences; what is computed in the end is the same function of the weights.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

MIN_FORK_TOKENS = 4
"""Sequences part after so many common tokens at least; those that part from a chain within so many do so at the first of these places."""

Ids = NDArray[np.int64]


class SharedPrefixGroup(msgspec.Struct, frozen=True):
    """Chains that see the same context; their tokens are neighbours."""

    chains: tuple[tuple[int, int], ...]
    """First token of each chain and the one after its last."""
    context: tuple[tuple[int, int], ...]
    """The tokens before them, as ranges, in order of position; empty for chains that begin a sequence."""

    @property
    def tokens(self) -> tuple[int, int]:
        """All tokens of the chains: the first and the one after the last."""
        return self.chains[0][0], self.chains[-1][1]

    def shifted(self, by: int) -> SharedPrefixGroup:
        """The same, so many tokens further on."""
        chains, context = (tuple((first + by, last + by) for first, last in ranges) for ranges in (self.chains, self.context))
        return SharedPrefixGroup(chains=chains, context=context)


class PrefixTree(msgspec.Struct, frozen=True):
    """Sequences laid out as chains, one after another."""

    token_ids: Ids
    """int64 `[tokens]`: those that are computed."""
    depths: Ids
    """int64 `[tokens]`: position of each in its sequences."""
    token_positions: tuple[Ids, ...]
    """For each sequence, int64 `[length]`: which of the tokens are its own."""
    groups: tuple[SharedPrefixGroup, ...]
    """In order of their tokens; what begins a sequence stands first."""


def shared_tokens(sequences: Sequence[Ids]) -> int:
    """How many tokens of these sequences need not be computed."""
    return sum(int(length) for length, _ in _forks(sequences).values())


def lexicographic_order(sequences: Sequence[Ids]) -> list[int]:
    """Their indices, sorted so that what a sequence begins with in common with any other it has in common with a neighbour too."""
    return sorted(range(len(sequences)), key=lambda index: sequences[index].astype(">i8").tobytes())


def common_prefix_length(left: Ids, right: Ids) -> int:
    """How many tokens two sequences begin with in common."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    first = int(different.argmax()) if length else 0
    return first if length and different[first] else length


def build_prefix_tree(sequences: Sequence[Ids]) -> PrefixTree:
    """Lay out sequences int64 `[length]` (one at least, none of them empty) so that shared beginnings stand once."""
    forks = _forks(sequences)
    families: dict[tuple[int, int], list[int]] = {}
    for index, (depth, donor) in forks.items():
        if depth < len(sequences[index]):
            families.setdefault((depth, _root(forks, donor, depth)), []).append(index)
    order = sorted(families, key=lambda family: family[0] > 0)
    begins: dict[int, int] = {}
    total = 0
    for family in order:
        for index in families[family]:
            begins[index] = total
            total += len(sequences[index]) - family[0]
    places: list[Ids] = [np.empty(0, dtype=np.int64)] * len(sequences)
    token_ids, depths = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for index, (depth, donor) in forks.items():
        length = len(sequences[index]) - depth
        own = np.arange(length, dtype=np.int64) + begins.get(index, 0)
        places[index] = np.concatenate([places[donor][:depth], own]) if depth else own
        token_ids[own], depths[own] = sequences[index][depth:], np.arange(depth, depth + length)
    groups = tuple(
        SharedPrefixGroup(
            chains=tuple((begins[index], begins[index] + len(sequences[index]) - depth) for index in families[depth, donor]),
            context=_ranges(places[families[depth, donor][0]][:depth]),
        )
        for depth, donor in order
    )
    return PrefixTree(token_ids=token_ids, depths=depths, token_positions=tuple(places), groups=groups)


def join(trees: Sequence[PrefixTree]) -> PrefixTree:
    """Several trees (one at least) as one, the first one's tokens first."""
    firsts = np.cumsum([0, *(len(tree.token_ids) for tree in trees)]).tolist()
    return PrefixTree(
        token_ids=np.concatenate([tree.token_ids for tree in trees]),
        depths=np.concatenate([tree.depths for tree in trees]),
        token_positions=tuple(places + first for tree, first in zip(trees, firsts, strict=False) for places in tree.token_positions),
        groups=tuple(family.shifted(first) for tree, first in zip(trees, firsts, strict=False) for family in tree.groups),
    )


def _forks(sequences: Sequence[Ids]) -> dict[int, tuple[int, int]]:
    """By sequence, longest first: where it parts from an earlier one, and from which; (0, itself) if it parts from none."""
    forks: dict[int, tuple[int, int]] = {}
    ranks = {index: rank for rank, index in enumerate(lexicographic_order(sequences))}
    earlier: list[tuple[int, int]] = []  # by rank: what an earlier one has most in common with is next to it
    for index in sorted(range(len(sequences)), key=lambda index: (-len(sequences[index]), index)):
        at = bisect.bisect(earlier, (ranks[index], index))
        common = [(common_prefix_length(sequences[index], sequences[other]), other) for _, other in earlier[max(0, at - 1) : at + 1]]
        forks[index] = max((found for found in common if found[0]), default=(0, index), key=lambda found: found[0])
        earlier.insert(at, (ranks[index], index))
    return _align_forks(forks, sequences)


def _align_forks(forks: dict[int, tuple[int, int]], sequences: Sequence[Ids]) -> dict[int, tuple[int, int]]:
    """The same, where sequences that part from one chain within few tokens do so at one place."""
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
    """The sequence whose chain holds the last of the first `depth` tokens of the donor."""
    while forks[donor][0] >= depth > 0:
        donor = forks[donor][1]
    return donor


def _ranges(places: Ids) -> tuple[tuple[int, int], ...]:
    """Ascending runs of neighbours."""
    if not len(places):
        return ()
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(places, cuts))
