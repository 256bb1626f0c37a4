"""Copies of a device's tensors in the host's memory, at the speed of the bus between both.

Page-locked, and written again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes at a multiple of which each tensor of a copy begins."""


def copy_to_host(tensors: Mapping[str, Tensor], reused: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
    """Copy tensors of one device to the host.

    Args:
        tensors: on any device.
        reused: an earlier copy of tensors of these names, shapes and types, which is overwritten; None or empty
            allocates one.

    Returns:
        The copies. For a CUDA device they are page-locked, so that it reads and writes them without the driver's own
        buffer.
    """
    copies = reused or allocate_copies(tensors)
    for name, tensor in tensors.items():
        copies[name].copy_(tensor)
    return copies


def allocate_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Allocate memory of the host for tensors of these shapes and types.

    One block, because torch rounds each up to a power of two.
    """
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors.values()]
    locked = any(tensor.is_cuda for tensor in tensors.values())
    block = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=locked)
    return {
        name: block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for (name, tensor), start in zip(tensors.items(), accumulate(sizes, initial=0), strict=False)
    }


def allocated_bytes(needed: int) -> int:
    """Memory that the copies of tensors of this many bytes take at most: torch's next power of two."""
    return 1 << max(needed - 1, 0).bit_length()
