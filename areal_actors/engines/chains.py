"""A prefix tree on a device: how its chains lie, and which of them attend to themselves in one call."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from areal_actors.prefix_tree import PrefixTree, Siblings

FULL = 0.75
"""Chains are padded together if the shortest has at least this share of the longest's tokens."""
SHORT = 16
"""Chains of at most so many tokens are padded together anyway."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Chains of like length, padded on the right to `[chains, width]` slots."""

    chains: int
    width: int
    tokens: Tensor
    """int64 `[tokens]`: the tokens of the chains."""
    slots: Tensor
    """int64 `[tokens]`: where each of them stands."""
    filled: Tensor
    """int64 `[chains * width]`: the token in each slot; any one where there is none."""
    empty: Tensor
    """int64: slots without a token."""

    def pad(self, column: Tensor, filling: float | None = None) -> Tensor:
        """Entries `[all tokens, heads, size]` as `[chains, heads, width, size]`; empty slots hold `filling`, or anything."""
        padded = column.index_select(0, self.filled)
        if filling is not None:
            padded.index_fill_(0, self.empty, filling)
        return padded.view(self.chains, self.width, *column.shape[1:]).transpose(1, 2)

    def unpad(self, padded: Tensor, column: Tensor) -> None:
        """Put entries `[chains, heads, width, size]` back into a column `[all tokens, heads, size]`."""
        entries = padded.transpose(1, 2).reshape(-1, *column.shape[1:])
        column.index_copy_(0, self.tokens, entries.index_select(0, self.slots))


class Chains(msgspec.Struct, frozen=True, kw_only=True):
    """The chains of a micro-batch, their tokens one after another."""

    depths: Tensor
    """int64 `[tokens]`: position of each token in its sequences."""
    families: tuple[Siblings, ...]
    """All chains, those with one context together."""
    buckets: tuple[Bucket, ...]
    """All chains, those of like length together."""

    @property
    def siblings(self) -> list[Siblings]:
        """The chains that have a context."""
        return [family for family in self.families if family.context]

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
    def of(cls, tree: PrefixTree, device: torch.device) -> Chains:
        """Prepare a tree for attention."""
        return cls(
            depths=torch.from_numpy(tree.depths).to(device),
            families=tree.siblings,
            buckets=_buckets([chain for family in tree.siblings for chain in family.chains], device),
        )


def _buckets(chains: Sequence[tuple[int, int]], device: torch.device) -> tuple[Bucket, ...]:
    parts: list[list[tuple[int, int]]] = []
    for first, last in sorted(chains, key=lambda chain: (chain[0] - chain[1], chain[0])):
        width = parts[-1][0][1] - parts[-1][0][0] if parts else 0
        if last - first >= FULL * width > 0 or 0 < width <= SHORT:
            parts[-1].append((first, last))
        else:
            parts.append([(first, last)])
    return tuple(_bucket(part, device) for part in parts)


def _bucket(part: Sequence[tuple[int, int]], device: torch.device) -> Bucket:
    width = part[0][1] - part[0][0]
    tokens = np.concatenate([np.arange(first, last) for first, last in part])
    slots = np.concatenate([np.arange(last - first) + place * width for place, (first, last) in enumerate(part)])
    filled = np.full(len(part) * width, part[0][0])
    filled[slots] = tokens
    empty = np.setdiff1d(np.arange(len(filled)), slots)
    tensors = {
        name: torch.from_numpy(array).to(device)
        for name, array in {"tokens": tokens, "slots": slots, "filled": filled, "empty": empty}.items()
    }
    return Bucket(chains=len(part), width=width, **tensors)
