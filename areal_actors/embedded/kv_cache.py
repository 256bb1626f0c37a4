"""KV cache of all slots: one row each. Running completions are in rows 0 to n - 1; other rows keep those of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


class SuffixStep:
    """Positions of tokens that follow cached ones: row rows[i] gets counts[i] tokens from position starts[i] on, padded at the end.

    Every token attends to all positions of its row up to its own.
    """

    def __init__(self, rows: Sequence[int], starts: NDArray[np.int64], counts: NDArray[np.int64], device: torch.device) -> None:
        self.rows = torch.tensor(rows, device=device)
        """[rows], int64."""
        self.width = int(counts.max())
        """Number of tokens per row, padding included."""
        self.longest = int((starts + counts).max())
        """Number of positions that attention reads."""
        offsets = np.arange(self.width)
        positions = torch.from_numpy(starts[:, None] + offsets).to(device)
        self._real = torch.from_numpy(offsets < counts[:, None]).to(device)
        self._real_rows = self.rows[:, None].expand(-1, self.width)[self._real]
        self._real_positions = positions[self._real]
        self.positions = positions.clamp_(max=self.longest - 1)
        """[rows, width], int64; those of padding are any."""

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Additive attention mask, [rows, 1, width, longest]: 0 at visible positions, the lowest number elsewhere."""
        hidden = torch.arange(self.longest, device=self.positions.device) > self.positions[:, None, :, None]
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)

    def write(self, storage: Tensor, entries: Tensor) -> Tensor:
        """Store entries [rows, heads, width, head_dim] without those of padding; a copy [rows, heads, longest, head_dim] of all."""
        storage[self._real_rows, :, self._real_positions] = entries.transpose(1, 2)[self._real]
        return storage[:, :, : self.longest].index_select(0, self.rows)


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
        self._layers: list[tuple[Tensor, ...] | None] = [None] * layers
        self._routes: Tensor | None = None
        """Experts of every position, [slots, 1, context, entries]: those that computed its keys and values."""

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

    def write_suffixes(self, layer: int, step: SuffixStep, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [rows, heads, step.width, head_dim] of tokens that follow cached ones.

        Returns:
            copies [rows, heads, step.longest, head_dim] of all keys and values of the rows.
        """
        stored_keys, stored_values = self._storage(layer, keys, values)
        return step.write(stored_keys, keys), step.write(stored_values, values)

    def write_routes(self, target: DecodeStep | SuffixStep | Tensor, chosen: Tensor) -> None:
        """Store the experts [tokens, entries] of a step's tokens, or of prompts in these rows; they are copied with keys and values."""
        if self._routes is None:
            shape = (self._rows, 1, self._positions, chosen.shape[-1])
            self._routes = torch.zeros(shape, dtype=chosen.dtype, device=chosen.device)
            self._layers.append((self._routes,))
        if isinstance(target, DecodeStep):
            self._routes[: len(target), 0][torch.arange(len(target), device=chosen.device), target.positions] = chosen
        elif isinstance(target, SuffixStep):
            target.write(self._routes, chosen.view(len(target.rows), 1, target.width, -1))
        else:
            entries = chosen.view(len(target), -1, chosen.shape[-1])
            self._routes[target, 0, : entries.shape[1]] = entries

    def routes(self, row: int, start: int, end: int) -> NDArray[np.integer[Any]]:
        """Experts of the positions `start` to `end`, exclusive, of a row: [positions, entries]; a copy."""
        assert self._routes is not None, "a forward pass stores them"
        copied: NDArray[np.integer[Any]] = self._routes[row, 0, start:end].cpu().numpy().copy()
        return copied

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row to another."""
        for pair in self._layers:
            for storage in pair or ():
                storage[target, :, :length] = storage[source, :, :length]

    def exchange(self, first: int, second: int, first_length: int, second_length: int) -> None:
        """Exchange the first `first_length` positions of one row with the first `second_length` of another."""
        for pair in self._layers:
            for storage in pair or ():
                kept = storage[second, :, :second_length].clone() if second_length else None
                storage[second, :, :first_length] = storage[first, :, :first_length]
                if kept is not None:
                    storage[first, :, :second_length] = kept

    def release(self) -> int:
        """Drop all keys and values and free their storage, which the next write allocates again; returns its bytes."""
        freed = sum(storage.nbytes for pair in self._layers for storage in pair or ())
        self._layers = [None] * len(self._layers)
        return freed

    def _storage(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        pair = self._layers[layer]
        if pair is None:
            pair = self._layers[layer] = self._empty(keys), self._empty(values)
        return pair[0], pair[1]

    def _targets(self, step: DecodeStep, heads: int) -> Tensor:
        targets = step.targets.get(heads)
        if targets is None:
            starts = torch.arange(len(step) * heads, device=step.positions.device).mul_(self._positions).view(-1, heads)
            targets = step.targets[heads] = starts.add_(step.positions[:, None]).view(-1)
        return targets

    def _empty(self, like: Tensor) -> Tensor:
        return torch.zeros((self._rows, like.shape[1], self._positions, like.shape[3]), dtype=like.dtype, device=like.device)
