"""KV cache of all slots, one row each.

Running completions are in rows 0 to n - 1; other rows keep those of earlier ones.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.embedded.batch_invariance import padded_positions, padded_row_count

WHOLE = ("cpu",)
"""Devices on which memory that is not yet written takes none."""
FIRST = (8, 256)
"""Rows and positions of a cache at first, on other devices."""
TOGETHER = 512
"""Positions up to which rows are exchanged together: more of the shorter ones would be copied for nothing."""


class DecodeStep:
    """Positions of one decode step: row i writes at positions[i] and attends to all positions up to its own."""

    def __init__(self, positions: NDArray[np.int64], device: torch.device, *, batch_invariant: bool = False) -> None:
        self.positions = torch.from_numpy(positions).to(device)
        """[rows], int64."""
        longest = int(positions.max()) + 1
        self.longest = padded_positions(longest) if batch_invariant else longest
        """Number of positions that attention reads."""
        self.targets: dict[int, Tensor] = {}
        """By number of heads: index of each row's and head's entry in storage viewed as [slots * heads * context,
        head_dim]."""

    def __len__(self) -> int:
        return len(self.positions)

    def mask(self, heads: int, dtype: torch.dtype) -> Tensor:
        """Additive attention mask, [rows * heads, 1, longest]: 0 at visible positions, the lowest number elsewhere."""
        hidden = torch.arange(self.longest, device=self.positions.device) > self.positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)
        return mask[:, None].expand(-1, heads, -1).reshape(-1, 1, self.longest)


class SuffixStep:
    """Positions of tokens that follow cached ones.

    Row rows[i] gets counts[i] tokens from position starts[i] on, padded at the end.
    Every token attends to all positions of its row up to its own.
    """

    def __init__(
        self, rows: Sequence[int], starts: NDArray[np.int64], counts: NDArray[np.int64], device: torch.device
    ) -> None:
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
        """Store entries [rows, heads, width, head_dim] without those of padding.

        Returns a copy [rows, heads, longest, head_dim] of all.
        """
        storage[self._real_rows, :, self._real_positions] = entries.transpose(1, 2)[self._real]
        return storage[:, :, : self.longest].index_select(0, self.rows)


class KVCache:
    """Storage [rows, heads, positions, head_dim] per layer, allocated when a layer first writes.

    Memory is used where it is written.
    On a CPU it has all slots and the whole context from the beginning, in pages that the system provides when they are
    first written. On other devices rows and positions grow. Entries beyond a row's position are zero, or left over from
    earlier completions; masks hide them.
    """

    def __init__(self, layers: int, slots: int, context: int, *, batch_invariant: bool = False) -> None:
        self.slots = slots
        self.context = context
        self.batch_invariant = batch_invariant
        """Allocates the rows and positions that batch-invariant steps add as padding."""
        self._most = (padded_row_count(slots), padded_positions(context)) if batch_invariant else (slots, context)
        """Rows and positions of a full cache."""
        self._rows, self._positions = 0, 0
        """Those that have storage; 0 before the first write."""
        self._layers: list[tuple[Tensor, ...] | None] = [None] * layers
        self._routes: Tensor | None = None
        """Experts of every position, [rows, 1, positions, entries]: those that computed its keys and values."""

    def write_prompts(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [prompts, heads, tokens, head_dim], from position 0, in these rows."""
        pair = self._storage(layer, keys, values, rows, keys.shape[2])
        for storage, entries in zip(pair, (keys, values), strict=True):
            storage[rows, :, : entries.shape[2]] = entries

    def write_tokens(self, layer: int, step: DecodeStep, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one token's keys and values [rows, heads, 1, head_dim] per row.

        Returns:
            views [rows, heads, step.longest, head_dim] of all keys and values of the rows.
        """
        views = []
        pair = self._storage(layer, keys, values, len(step), step.longest)
        for storage, entries in zip(pair, (keys, values), strict=True):
            head_dim = entries.shape[3]
            storage.view(-1, head_dim).index_copy_(
                0, self._targets(step, entries.shape[1]), entries.reshape(-1, head_dim)
            )
            views.append(storage[: len(step), :, : step.longest])
        return views[0], views[1]

    def write_suffixes(self, layer: int, step: SuffixStep, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [rows, heads, step.width, head_dim] of tokens that follow cached ones.

        Returns:
            copies [rows, heads, step.longest, head_dim] of all keys and values of the rows.
        """
        stored_keys, stored_values = self._storage(layer, keys, values, step.rows, step.longest)
        return step.write(stored_keys, keys), step.write(stored_values, values)

    def write_routes(self, target: DecodeStep | SuffixStep | Tensor, chosen: Tensor) -> None:
        """Store the experts [tokens, entries] of a step's tokens, or of prompts in these rows.

        They are copied with keys and values.
        """
        if self._routes is None:
            self._routes = self._allocate(1, chosen)
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
        self._grow(target + 1, length)
        for storage in self._storages():
            storage[target, :, :length] = storage[source, :, :length]

    def exchange_rows(self, firsts: NDArray[np.int64], seconds: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Exchange the rows `firsts` with the rows `seconds`; `lengths` `[rows of the cache]` are those of what counts.

        Short rows are exchanged together, up to the longest of them.
        """
        longest = int(np.maximum(lengths[firsts], lengths[seconds]).max())
        if longest > TOGETHER or len(firsts) == 1:
            for first, second in zip(firsts.tolist(), seconds.tolist(), strict=True):
                self.exchange(first, second, int(lengths[first]), int(lengths[second]))
            return
        self._grow(int(max(firsts.max(), seconds.max())) + 1, longest)
        sources, targets = (torch.from_numpy(np.concatenate(rows)) for rows in ((seconds, firsts), (firsts, seconds)))
        for storage in self._storages():
            place = storage[:, :, :longest]
            place.index_copy_(0, targets.to(storage.device), place.index_select(0, sources.to(storage.device)))

    def exchange(self, first: int, second: int, first_length: int, second_length: int) -> None:
        """Exchange the first `first_length` positions of one row with the first `second_length` of another."""
        self._grow(max(first, second) + 1, max(first_length, second_length))
        for storage in self._storages():
            kept = storage[second, :, :second_length].clone() if second_length else None
            storage[second, :, :first_length] = storage[first, :, :first_length]
            if kept is not None:
                storage[first, :, :second_length] = kept

    def release(self) -> int:
        """Drop all keys and values and free their storage, which the next write allocates again; returns its bytes.

        Routes stay.
        """
        freed = sum(storage.nbytes for pair in self._layers for storage in pair or ())
        self._layers = [None] * len(self._layers)
        return freed

    def _storages(self) -> Iterator[Tensor]:
        for pair in self._layers:
            yield from pair or ()
        if self._routes is not None:
            yield self._routes

    def _storage(
        self, layer: int, keys: Tensor, values: Tensor, rows: int | Tensor, positions: int
    ) -> tuple[Tensor, Tensor]:
        """Storage of a layer for keys and values like these.

        It has these rows (a sequence or their number) and this number of positions.
        """
        if not self._rows:
            self._rows, self._positions = self._most if keys.device.type in WHOLE else map(min, self._most, FIRST)
        if (self._rows, self._positions) != self._most:
            self._grow(int(rows.max()) + 1 if isinstance(rows, Tensor) else rows, positions)
        pair = self._layers[layer]
        if pair is None:
            pair = self._layers[layer] = self._allocate(keys.shape[1], keys), self._allocate(values.shape[1], values)
        return pair[0], pair[1]

    def _grow(self, rows: int, positions: int) -> None:
        """Allocate larger storage, at least twice as large, unless it has these numbers of rows and positions."""
        if not self._rows or (rows <= self._rows and positions <= self._positions):
            return
        self._rows = self._rows if rows <= self._rows else min(max(rows, 2 * self._rows), self._most[0])
        self._positions = (
            self._positions if positions <= self._positions else min(max(positions, 2 * self._positions), self._most[1])
        )
        # One layer after the other, so that only one is there twice.
        for layer, pair in enumerate(self._layers):
            self._layers[layer] = pair and tuple(map(self._enlarge, pair))
        self._routes = self._routes if self._routes is None else self._enlarge(self._routes)

    def _enlarge(self, storage: Tensor) -> Tensor:
        larger = self._allocate(storage.shape[1], storage)
        larger[: storage.shape[0], :, : storage.shape[2]] = storage
        return larger

    def _allocate(self, heads: int, like: Tensor) -> Tensor:
        return zeros((self._rows, heads, self._positions, like.shape[-1]), like)

    def _targets(self, step: DecodeStep, heads: int) -> Tensor:
        targets = step.targets.get(heads)
        if targets is None:
            starts = torch.arange(len(step) * heads, device=step.positions.device).mul_(self._positions).view(-1, heads)
            targets = step.targets[heads] = starts.add_(step.positions[:, None]).view(-1)
        return targets


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros of a tensor's type on its device.

    On a CPU the system provides their memory, page by page, when it is written.
    """
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    # Private: shared pages count as shared memory, not as this process's own.
    memory = mmap.mmap(-1, max(math.prod(shape) * like.itemsize, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # A huge page would be used whole for the first token of a row.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype, count=math.prod(shape)).view(*shape)
