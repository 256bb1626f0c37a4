"""Matrices in 4 bits, NF4 with doubly quantized scales (arXiv:2305.14314, section 3), by the libraries that have it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from areal_actors.core.lazy import LazyModule

bitsandbytes: Any = LazyModule("bitsandbytes.functional")
torchao: Any = LazyModule("torchao.quantization")

BLOCK = 64
"""Values that share a scale."""
MATRIX = 2
"""Dimensions of the weights that are packed."""
SCALE_BLOCK = 256
"""Scales that share a scale of their own, at most."""


class PackedWeight(Protocol):
    """A matrix in 4 bits, on the device of the matrix that was packed."""

    def unpack(self) -> Tensor:
        """Returns the rounded matrix, float32 `[out, in]`; the same bits each time."""
        ...


class BitsAndBytesWeight:
    """A matrix as bitsandbytes packs it."""

    def __init__(self, weight: Tensor) -> None:
        """Pack float32 `[out, in]`."""
        self._packed, self._state = bitsandbytes.quantize_4bit(
            weight.contiguous(), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
        )

    def unpack(self) -> Tensor:
        """See `PackedWeight`."""
        unpacked: Tensor = bitsandbytes.dequantize_4bit(self._packed, self._state)
        return unpacked


class TorchaoWeight:
    """A matrix as torchao packs it."""

    def __init__(self, weight: Tensor) -> None:
        """Pack float32 `[out, in]`, whose number of values is a multiple of `BLOCK`."""
        scales = weight.numel() // BLOCK
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchao's own, at its import
            self._packed = torchao.to_nf4(weight.contiguous(), BLOCK, math.gcd(scales, SCALE_BLOCK))

    def unpack(self) -> Tensor:
        """See `PackedWeight`."""
        unpacked: Tensor = self._packed.get_original_weight()
        return unpacked


PACKERS: Mapping[str, Callable[[Tensor], PackedWeight]] = {
    "bitsandbytes": BitsAndBytesWeight,
    "torchao": TorchaoWeight,
}
"""By `trainer.lora.quantize_base`."""


def can_pack(weight: Tensor) -> bool:
    """Returns True for matrices whose values fill whole blocks."""
    return weight.ndim == MATRIX and weight.numel() > 0 and weight.numel() % BLOCK == 0


def pack_weight(library: str, weight: Tensor, device: torch.device) -> tuple[PackedWeight, Tensor]:
    """Pack a matrix on a device; returns it with the rounded matrix."""
    with torch.no_grad():
        packed = PACKERS[library](weight.detach().to(device, torch.float32))
        return packed, packed.unpack()
