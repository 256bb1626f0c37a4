"""Weights in buckets of a limited size, as they are sent to inference servers.

They are whole, or what changed against the version that the server holds. The receiving side is
`generation/servers/server_side/areal_weights.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

CONTROL, PAD, AT, TO = "areal.control", "areal.pad", "#at", "#to"
ALIGNMENT = 8
"""Servers view the bytes of a bucket as its tensors, which must begin at multiples of the size of their values."""
MAX_INDEX = 2**31 - 1
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of the size of a value: values are compared by their bits, so that NaN equals itself and -0 differs from
0."""

Named = tuple[str, Tensor]


def delta(base: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Iterator[Named]:
    """Yields what changed in tensors of equal names, types and shapes.

    That is values with their places, or whole tensors if that is less.

    Raises:
        ValueError: names, types or shapes differ.
    """
    if {name: (tensor.dtype, tensor.shape) for name, tensor in base.items()} != {
        name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()
    }:
        raise ValueError("the tensors of both versions differ in names, types or shapes")
    for name in sorted(tensors):
        new, bits = tensors[name].flatten(), BITS[tensors[name].element_size()]
        places = (new.view(bits) != base[name].flatten().view(bits)).nonzero()[:, 0]
        if not len(places):
            continue
        if len(places) * (4 + new.element_size()) >= new.nbytes or new.numel() > MAX_INDEX:
            yield name, tensors[name]
        else:
            yield f"{name}{AT}", places.int()
            yield f"{name}{TO}", new[places]


def to_buckets(weights: Iterable[Named], control: Mapping[str, Any], bucket_bytes: int) -> list[list[Named]]:
    """Returns tensors in buckets of about this size; the first tensor of each has `control` and the numbers of buckets.

    Args:
        weights: in the order in which they are sent.
        control: `kind` (`whole` or `delta`), `keep`, `base` and `checksum`.
        bucket_bytes: a larger tensor is a bucket of its own.
    """
    buckets: list[list[Named]] = [[]]
    size = 0
    for name, tensor in weights:
        if buckets[-1] and size + tensor.nbytes > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append((name, tensor))
        if padding := -tensor.nbytes % ALIGNMENT:
            buckets[-1].append((PAD, torch.zeros(padding, dtype=torch.uint8)))
        size += tensor.nbytes
    return [
        [(CONTROL, _encode_control({**control, "part": place, "parts": len(buckets)})), *bucket]
        for place, bucket in enumerate(buckets)
    ]


def _encode_control(control: Mapping[str, Any]) -> Tensor:
    text = json.dumps(control).encode()
    return torch.tensor(list(text.ljust(len(text) + -len(text) % ALIGNMENT)), dtype=torch.uint8)
