"""Order of the draws from a dataset: a function of seed and epoch, so that no state has to be saved.

The n-th draw is row n mod length of the permutation of epoch n div length. Given the number of draws made, from a fold
over the log or from a checkpoint, the order continues exactly.
"""

from __future__ import annotations

import random
from array import array
from functools import lru_cache

import msgspec


class Order(msgspec.Struct, frozen=True):
    """Endless sequence of draws from `length` rows: each epoch draws every row once."""

    length: int
    """At least 1."""
    seed: int | None = None
    """Seed of the shuffle of each epoch; None keeps the order of the rows."""

    def row(self, draw: int) -> int:
        """Returns the row number of a draw, both counted from 0."""
        epoch, position = divmod(draw, self.length)
        return position if self.seed is None else permutation(self.seed, epoch, self.length)[position]

    def rows(self, first: int, count: int) -> tuple[int, ...]:
        """Returns the rows of the draws `first` to `first + count - 1`, also across epochs."""
        return tuple(self.row(draw) for draw in range(first, first + count))


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, length: int) -> array[int]:
    """Returns the row numbers in the order of this epoch, equal on all machines; 4 bytes per row.

    Cached: do not modify.
    """
    order = array("I", range(length))
    random.Random(f"epoch {epoch} of {seed}").shuffle(order)
    return order
