"""In which order the rows of a dataset are drawn: a function of seed and epoch, so that nothing about it has to be saved.

The n-th draw is row n mod length of the (n div length)-th epoch's permutation. Whoever knows how many draws were made, by a
fold over the log or from a checkpoint, goes on exactly there.
"""

from __future__ import annotations

import random
from array import array
from functools import lru_cache

import msgspec


class Order(msgspec.Struct, frozen=True):
    """The endless sequence of draws from `length` rows: each epoch draws every row once."""

    length: int
    """At least 1."""
    seed: int | None = None
    """Each epoch is shuffled anew by this seed; None keeps the order of the rows."""

    def row(self, draw: int) -> int:
        """The number of the row that is drawn `draw`-th, both counted from 0."""
        epoch, position = divmod(draw, self.length)
        return position if self.seed is None else permutation(self.seed, epoch, self.length)[position]

    def rows(self, first: int, count: int) -> tuple[int, ...]:
        """The rows of the draws `first` to `first + count - 1`; they may reach over the end of an epoch."""
        return tuple(self.row(draw) for draw in range(first, first + count))


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, length: int) -> array[int]:
    """The numbers 0 to length - 1 in the order of this epoch, the same on every machine; 4 bytes a row. Not to be changed."""
    order = array("I", range(length))
    random.Random(f"epoch {epoch} of {seed}").shuffle(order)
    return order
