"""Recorded routes of training rows, in the layout of a micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from areal_actors.core.routes import RouteShape
from areal_actors.core.values import TrainingSequence

OWN = -1
"""Stands for an expert that the trainer's own router chooses."""
ID_BYTES = 8


class RowRoutes:
    """Routes of the rows of a step; for a model of this shape."""

    def __init__(self, rows: Sequence[TrainingSequence], shape: RouteShape) -> None:
        self._rows = rows
        self._shape = shape
        self._keys: dict[int, NDArray[np.int64]] = {}

    def keys(self, index: int, width: int) -> NDArray[np.int64]:
        """Hashes int64 `[width]` of token id and routes at the first positions of a row, one for each position."""
        if len(keys := self._keys.get(index, np.empty(0, dtype=np.int64))) < width:
            keys = self._keys[index] = self._hash_tokens(self._rows[index])
        return keys[:width]

    def _hash_tokens(self, row: TrainingSequence) -> NDArray[np.int64]:
        ids, size = row.token_ids.astype("<i8").tobytes(), self._shape.position_bytes
        return np.array(
            [
                xxhash.xxh3_64_intdigest(
                    ids[ID_BYTES * place : ID_BYTES * (place + 1)] + row.routes[size * place : size * (place + 1)]
                )
                for place in range(len(row.token_ids))
            ],
            dtype=np.uint64,
        ).astype(np.int64)

    def lay_out(self, shape: tuple[int, ...], rows: Iterable[tuple[int, NDArray[np.int64]]]) -> NDArray[np.int16]:
        """Returns experts int16 `[*shape, layers, top_k]`; `rows` has the flat indices of each row's positions."""
        layers, top_k = len(self._shape.layers), self._shape.top_k
        experts = np.full((int(np.prod(shape)), layers, top_k), OWN, dtype=np.int16)
        for index, places in rows:
            routes = self._shape.unpack(self._rows[index].routes)[: len(places)]
            experts[places[: len(routes)]] = routes
        return experts.reshape(*shape, layers, top_k)
