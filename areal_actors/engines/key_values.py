"""Keys and values of every completion being decoded: one row per slot, rows 0 to n - 1 in use."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.engines.batch_invariance import positions_seen, rows_computed


class Step:
    """Where one decode step writes and what it sees: row i is at positions[i] and sees the positions up to its own."""

    def __init__(self, positions: NDArray[np.int64], device: torch.device, *, batch_invariant: bool = False) -> None:
        self.positions = torch.from_numpy(positions).to(device)
        """[rows], int64."""
        longest = int(positions.max()) + 1
        self.longest = positions_seen(longest) if batch_invariant else longest
        """How many positions attention looks at."""
        self.targets: dict[int, Tensor] = {}
        """By number of heads: where each row's and head's entry lies in storage seen as [slots * heads * context, head_dim]."""

    def __len__(self) -> int:
        return len(self.positions)

    def mask(self, heads: int, dtype: torch.dtype) -> Tensor:
        """What is added to attention scores, [rows * heads, 1, longest]: 0 where a row may look, the lowest number elsewhere."""
        hidden = torch.arange(self.longest, device=self.positions.device) > self.positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)
        return mask[:, None].expand(-1, heads, -1).reshape(-1, 1, self.longest)


class KeyValues:
    """Storage [slots, heads, context, head_dim] per layer, allocated when a layer first writes.

    What lies beyond a row's position is left over from earlier completions; no mask ever lets a row see it.
    """

    def __init__(self, layers: int, slots: int, context: int, *, batch_invariant: bool = False) -> None:
        self.slots = slots
        self.context = context
        self.batch_invariant = batch_invariant
        """A step may have more rows, and look at more positions, than are in use: they are allocated."""
        self._rows = rows_computed(slots) if batch_invariant else slots
        self._positions = positions_seen(context) if batch_invariant else context
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def write_prompts(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep keys and values [prompts, heads, tokens, head_dim], from position 0, in these rows."""
        for storage, entries in zip(self._storage(layer, keys, values), (keys, values), strict=True):
            storage[rows, :, : entries.shape[2]] = entries

    def write_tokens(self, layer: int, step: Step, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep one token's keys and values [rows, heads, 1, head_dim] per row.

        Returns:
            views [rows, heads, step.longest, head_dim] of everything that the rows hold.
        """
        views = []
        for storage, entries in zip(self._storage(layer, keys, values), (keys, values), strict=True):
            head_dim = entries.shape[3]
            storage.view(-1, head_dim).index_copy_(0, self._targets(step, entries.shape[1]), entries.reshape(-1, head_dim))
            views.append(storage[: len(step), :, : step.longest])
        return views[0], views[1]

    def copy(self, source: int, target: int, length: int) -> None:
        """Make a row hold what another holds in its first `length` positions."""
        for pair in self._layers:
            for storage in pair or ():
                storage[target, :, :length] = storage[source, :, :length]

    def _storage(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        pair = self._layers[layer]
        if pair is None:
            pair = self._layers[layer] = self._empty(keys), self._empty(values)
        return pair

    def _targets(self, step: Step, heads: int) -> Tensor:
        targets = step.targets.get(heads)
        if targets is None:
            starts = torch.arange(len(step) * heads, device=step.positions.device).mul_(self._positions).view(-1, heads)
            targets = step.targets[heads] = starts.add_(step.positions[:, None]).view(-1)
        return targets

    def _empty(self, like: Tensor) -> Tensor:
        return torch.zeros((self._rows, like.shape[1], self._positions, like.shape[3]), dtype=like.dtype, device=like.device)
