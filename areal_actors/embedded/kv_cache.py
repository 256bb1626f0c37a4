"""KV cache of all running completions: one row per slot, rows 0 to n - 1 in use."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.embedded.batch_invariance import padded_positions, padded_row_count


class DecodeStep:
    """Positions of one decode step: row i writes at positions[i] and attends to all positions up to its own."""

    def __init__(self, positions: NDArray[np.int64], device: torch.device, *, batch_invariant: bool = False) -> None:
        self.positions = torch.from_numpy(positions).to(device)
        """[rows], int64."""
        longest = int(positions.max()) + 1
        self.longest = padded_positions(longest) if batch_invariant else longest
        """Number of positions that attention reads."""
        self.targets: dict[int, Tensor] = {}
        """By number of heads: index of each row's and head's entry in storage viewed as [slots * heads * context, head_dim]."""

    def __len__(self) -> int:
        return len(self.positions)

    def mask(self, heads: int, dtype: torch.dtype) -> Tensor:
        """Additive attention mask, [rows * heads, 1, longest]: 0 at visible positions, the lowest number elsewhere."""
        hidden = torch.arange(self.longest, device=self.positions.device) > self.positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)
        return mask[:, None].expand(-1, heads, -1).reshape(-1, 1, self.longest)


class KVCache:
    """Storage [slots, heads, context, head_dim] per layer, allocated when a layer first writes.

    Entries beyond a row's position are left over from earlier completions; masks hide them.
    """

    def __init__(self, layers: int, slots: int, context: int, *, batch_invariant: bool = False) -> None:
        self.slots = slots
        self.context = context
        self.batch_invariant = batch_invariant
        """Allocates the rows and positions that batch-invariant steps add as padding."""
        self._rows = padded_row_count(slots) if batch_invariant else slots
        self._positions = padded_positions(context) if batch_invariant else context
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def write_prompts(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [prompts, heads, tokens, head_dim], from position 0, in these rows."""
        for storage, entries in zip(self._storage(layer, keys, values), (keys, values), strict=True):
            storage[rows, :, : entries.shape[2]] = entries

    def write_tokens(self, layer: int, step: DecodeStep, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one token's keys and values [rows, heads, 1, head_dim] per row.

        Returns:
            views [rows, heads, step.longest, head_dim] of all keys and values of the rows.
        """
        views = []
        for storage, entries in zip(self._storage(layer, keys, values), (keys, values), strict=True):
            head_dim = entries.shape[3]
            storage.view(-1, head_dim).index_copy_(0, self._targets(step, entries.shape[1]), entries.reshape(-1, head_dim))
            views.append(storage[: len(step), :, : step.longest])
        return views[0], views[1]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row to another."""
        for pair in self._layers:
            for storage in pair or ():
                storage[target, :, :length] = storage[source, :, :length]

    def _storage(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        pair = self._layers[layer]
        if pair is None:
            pair = self._layers[layer] = self._empty(keys), self._empty(values)
        return pair

    def _targets(self, step: DecodeStep, heads: int) -> Tensor:
        targets = step.targets.get(heads)
        if targets is None:
            starts = torch.arange(len(step) * heads, device=step.positions.device).mul_(self._positions).view(-1, heads)
            targets = step.targets[heads] = starts.add_(step.positions[:, None]).view(-1)
        return targets

    def _empty(self, like: Tensor) -> Tensor:
        return torch.zeros((self._rows, like.shape[1], self._positions, like.shape[3]), dtype=like.dtype, device=like.device)
