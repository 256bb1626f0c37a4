"""Routes: the experts that each layer of a mixture of experts chose for each position.

The engine that sampled reports them. A column of routes is bytes `[positions, layers, top_k]`: the numbers of the
chosen experts, in the smallest integer that holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from areal_actors.core.column_check import ColumnFault
from areal_actors.core.errors import EngineError
from areal_actors.core.lazy import LazyModule
from areal_bus.message import FrozenMeta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")

MODEL_TYPES = ("qwen3_moe",)
"""Model types of Hugging Face whose routes are reported and replayed."""
ANY_EXPERTS = 256
"""Number of experts up to which one byte holds the number of any of them."""


class RouteShape(msgspec.Struct, metaclass=FrozenMeta):
    """The mixtures of experts of a model."""

    layers: tuple[int, ...]
    """Numbers of the blocks that have experts, counted from 0."""
    experts: int
    """Number of experts of each of them."""
    top_k: int
    """Number of experts that each of them chooses for a position."""
    blocks: int
    """Number of all blocks of the model."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of an entry: u8, or little-endian u16."""
        return np.dtype("u1" if self.experts <= ANY_EXPERTS else "<u2")

    @property
    def position_bytes(self) -> int:
        """Bytes of a position."""
        return len(self.layers) * self.top_k * self.dtype.itemsize

    def pack(self, chosen: NDArray[Any]) -> bytes:
        """Returns chosen experts `[positions, layers, top_k]` as a column."""
        return chosen.astype(self.dtype).tobytes()

    def pack_blocks(self, chosen: bytes) -> bytes:
        """Returns int32 `[positions, blocks, top_k]` of all blocks as a column, without those that have no experts.

        Raises:
            EngineError: it is of another shape.
        """
        if len(chosen) % (4 * self.blocks * self.top_k):
            raise EngineError(
                f"{len(chosen)} bytes of experts are not int32 [positions, {self.blocks} blocks, {self.top_k} experts]"
            )
        every = np.frombuffer(chosen, dtype="<i4").reshape(-1, self.blocks, self.top_k)
        return self.pack(every[:, list(self.layers)])

    def unpack(self, routes: bytes) -> NDArray[Any]:
        """Returns a column as an array `[positions, layers, top_k]`; a read-only view."""
        return np.frombuffer(routes, dtype=self.dtype).reshape(-1, len(self.layers), self.top_k)

    def fault(self, routes: bytes, positions: int | None = None) -> ColumnFault | None:
        """Returns why a column is none of this model, or of more than this number of positions; None if it is one."""
        if len(routes) % self.position_bytes:
            expected = (
                f"a multiple of {self.position_bytes} was expected, for {len(self.layers)} layers with {self.top_k}"
                " experts each"
            )
            return ColumnFault(check="routes", detail=f"{len(routes)} bytes; {expected}")
        experts = self.unpack(routes)
        if positions is not None and len(experts) > positions:
            return ColumnFault(check="routes", detail=f"{len(experts)} positions; at most {positions} were expected")
        if routes and int(experts.max()) >= self.experts:
            place = int((experts >= self.experts).any((1, 2)).argmax())
            detail = (
                f"expert {int(experts[place].max())} at position {place}; the model's experts are 0 to"
                f" {self.experts - 1}"
            )
            return ColumnFault(check="routes", detail=detail)
        return None


def shape_of_config(config: Mapping[str, Any]) -> RouteShape | None:
    """Returns the mixtures of a Hugging Face configuration.

    None if there are none, or if its model type is not in `MODEL_TYPES`.
    """
    if config.get("model_type") not in MODEL_TYPES:
        return None
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    dense, step = config.get("mlp_only_layers") or (), int(config.get("decoder_sparse_step") or 1)
    blocks = int(config["num_hidden_layers"])
    layers = tuple(number for number in range(blocks) if number not in dense and (number + 1) % step == 0)
    if not experts or not layers:
        return None
    return RouteShape(layers=layers, experts=experts, top_k=int(config["num_experts_per_tok"]), blocks=blocks)
