"""Matrices in fewer bits.

In 4 bits, NF4 with doubly quantized scales (arXiv:2305.14314, section 3), by the libraries that have it; in 8 bits, FP8
E4M3 (arXiv:2209.05433) with a scale for each row, by PyTorch.
"""

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

FLOAT8 = "float8"
"""Value of `trainer.lora.quantize_base` for FP8; the others are libraries for 4 bits."""
LARGEST_FLOAT8 = 448.0
"""Largest finite number of E4M3."""
BLOCK = 64
"""Values in 4 bits that share a scale."""
MATRIX = 2
"""Dimensions of the weights that are packed."""
SCALE_BLOCK = 256
"""Scales that share a scale of their own, at most."""


class PackedWeight(Protocol):
    """A matrix in 4 or 8 bits, on the device of the matrix that was packed."""

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


class Float8Weight:
    """A matrix in E4M3, each row as a share of its largest value."""

    def __init__(self, weight: Tensor) -> None:
        """Pack float32 `[out, in]`."""
        largest = weight.abs().amax(dim=1, keepdim=True)
        self._scale = torch.where(largest > 0, largest / LARGEST_FLOAT8, 1.0)
        self._packed = (weight / self._scale).clamp(-LARGEST_FLOAT8, LARGEST_FLOAT8).to(torch.float8_e4m3fn)

    def unpack(self) -> Tensor:
        """See `PackedWeight`."""
        return self._packed.float() * self._scale


PACKERS: Mapping[str, Callable[[Tensor], PackedWeight]] = {
    "bitsandbytes": BitsAndBytesWeight,
    "torchao": TorchaoWeight,
    FLOAT8: Float8Weight,
}
"""By `trainer.lora.quantize_base`."""


def can_pack(form: str, weight: Tensor) -> bool:
    """Returns True for matrices, in 4 bits for those whose values fill whole blocks."""
    return weight.ndim == MATRIX and weight.numel() > 0 and (form == FLOAT8 or weight.numel() % BLOCK == 0)


def pack_weight(form: str, weight: Tensor, device: torch.device) -> tuple[PackedWeight, Tensor]:
    """Pack a matrix on a device in the form that `PACKERS` names; returns it with the rounded matrix."""
    with torch.no_grad():
        packed = PACKERS[form](weight.detach().to(device, torch.float32))
        return packed, packed.unpack()
