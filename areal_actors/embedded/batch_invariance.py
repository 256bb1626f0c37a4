"""Shapes under which the results of a row do not depend on the other rows of its batch, to the last bit.

Floating-point sums depend on their order, and libraries choose the order by the shape of the whole batch. On a CPU,
with one thread, these are the places where they do, and what is done about each:

- A matrix product of few rows uses another kernel than one of many, and so may its last rows: a decode step is padded
  to at least `MIN_ROWS` rows, in multiples of `ROW_STEP`, and so are the tokens of a prefill.
- Softmax and products over positions use other kernels for lengths that are short, no multiple of a vector, or beyond a
  block of the library: attention reads at least `MIN_POSITIONS` positions, a multiple of `VECTOR`, and sums values of
  `BLOCK` positions at a time. Positions beyond a row's own have probability 0, and adding 0 changes no bit.
- Attention over a prompt depends on its padded length: only prompts of equal length share a prefill batch, and no
  prompt continues a cached prefix (`prefix_cache`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

MIN_ROWS, ROW_STEP = (16, 1) if torch.backends.cpu.get_cpu_capability() == "AVX512" else (60, 12)
"""Number of rows from which a matrix product uses the same kernel, and the multiple that the kernel needs; the second
pair is measured with AVX2."""
MIN_POSITIONS = 128
"""Number of positions from which attention uses the same kernels, for heads of up to 128 entries."""
VECTOR = 16
"""Float32 numbers in the widest vector of a CPU."""
BLOCK = 256
"""Positions over which attention's weighted sum of values is one product; a multiple of `VECTOR`."""


def padded_positions(longest: int) -> int:
    """Number of positions that attention reads when the longest row has `longest`."""
    return max(MIN_POSITIONS, -(-longest // VECTOR) * VECTOR)


def padded_row_count(rows: int) -> int:
    """Number of rows, or tokens, of a forward that needs `rows` of them, padding included."""
    return max(MIN_ROWS, -(-rows // ROW_STEP) * ROW_STEP)


def pad_rows(column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pad a column over rows with zeros: padding rows write to unused cache rows, and their results are never read."""
    missing = padded_row_count(len(column)) - len(column)
    return np.concatenate((column, np.zeros(missing, dtype=column.dtype))) if missing > 0 else column
