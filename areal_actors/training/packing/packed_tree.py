"""A prefix tree packed on a device: the layout of its chains, and the attention calls or the mask that cover them."""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from areal_actors.training.packing.attention_plan import AttentionPlan, make_plan, make_window_plan
from areal_actors.training.packing.block_mask import block_mask
from areal_actors.training.packing.prefix_tree import PrefixTree

GAP = 24
"""Minimum run of adjacent tokens without output that the last block skips; a shorter one costs less than an additional
call."""
MIN_SKIPPED_SHARE = 0.1
"""Minimum share of tokens that the last block must skip for this to pay."""
PLANNED_DEVICES = ("cpu",)
"""Devices whose attention is planned as calls of torch's kernels; the others compute it in one call, with a block
mask."""


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
    tree: PrefixTree
    """The chains on the host."""
    windows: dict[int | None, AttentionPlan | BlockMask] = msgspec.field(default_factory=dict)
    """Plans by window, None for layers without one, as far as layers asked for them."""

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
        plan=(
            make_plan(tree.groups, stretches, len(tree.depths), device) if planned else block_mask(tree, device, tokens)
        ),
    )


def _stretches(chain: tuple[int, int], wanted: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of the chain that the last block computes."""
    first, last = np.searchsorted(wanted, chain)
    stretch = wanted[first:last]
    if not len(stretch):
        return []
    before = np.diff(stretch, prepend=chain[0] - 1) - 1  # unused tokens before each
    begins = np.flatnonzero(before >= GAP)
    if before[0] < GAP:
        begins = np.concatenate([[0], begins])
    starts = stretch[begins]
    if before[0] < GAP:
        starts[0] = chain[0]
    return list(zip(starts.tolist(), (stretch[np.append(begins[1:], len(stretch)) - 1] + 1).tolist(), strict=True))
