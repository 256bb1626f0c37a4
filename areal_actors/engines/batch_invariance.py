"""Shapes under which a row's numbers do not depend on what is decoded beside it, to the last bit.

Floating-point sums depend on their order, and libraries choose the order by the shape of the whole batch. On a CPU, with one
thread, these are the places where they do, and what is done about each:

- A matrix product of few rows uses another kernel than one of many, and so may its last rows: a step has at least `FEWEST_ROWS`
  rows, in multiples of `ROW_STEP`, and so have the tokens of a forward over prompts.
- A softmax, and products over as many positions, treat lengths differently that are short, no multiple of a vector, or beyond
  a block of the library: attention looks at `FEWEST_POSITIONS` or more, a multiple of `VECTOR`, and sums values of `BLOCK`
  positions at a time. Positions beyond a row's own have probability 0, and adding 0 changes no bit.
- Attention over a prompt depends on its padded length: only prompts of one length are computed together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

FEWEST_ROWS, ROW_STEP = (16, 1) if torch.backends.cpu.get_cpu_capability() == "AVX512" else (60, 12)
"""Rows of a matrix product from which on its kernel stays the same, and how many of them the kernel takes at a time; the second
pair is measured with AVX2."""
FEWEST_POSITIONS = 128
"""Positions from which on the kernels of attention stay the same, for heads of up to 128 entries."""
VECTOR = 16
"""Float32 numbers in the widest vector of a CPU."""
BLOCK = 256
"""Positions over which attention's weighted sum of values is one product; a multiple of `VECTOR`."""


def positions_seen(longest: int) -> int:
    """Number of positions that attention reads when the longest row has `longest`."""
    return max(FEWEST_POSITIONS, -(-longest // VECTOR) * VECTOR)


def rows_computed(rows: int) -> int:
    """Number of rows, or tokens, that a forward computes to get `rows` of them."""
    return max(FEWEST_ROWS, -(-rows // ROW_STEP) * ROW_STEP)


def with_all_rows(column: NDArray[np.int64]) -> NDArray[np.int64]:
    """A column over rows, with zeros for the rows that are computed besides: they write where no completion is, and are never read."""
    missing = rows_computed(len(column)) - len(column)
    return np.concatenate((column, np.zeros(missing, dtype=column.dtype))) if missing > 0 else column


def batches_of_one_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of sequences in batches of the same length, each of at most `budget` tokens (or a single sequence)."""
    of_length: dict[int, list[list[int]]] = {}
    for index, length in enumerate(lengths):
        batches = of_length.setdefault(length, [[]])
        if batches[-1] and (len(batches[-1]) + 1) * length > budget:
            batches.append([])
        batches[-1].append(index)
    return [batch for length in sorted(of_length) for batch in of_length[length]]
