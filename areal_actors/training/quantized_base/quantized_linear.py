"""A frozen linear layer whose matrix is in 4 or 8 bits; it is unpacked for each pass, and not kept between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from areal_actors.training.quantized_base.packed_weights import PackedWeight


class QuantizedLinear(nn.Linear):
    """Computes what a linear layer with the rounded matrix computes, to the last bit; only its input has a gradient.

    Its state has the bias alone, if there is one: the matrix follows from the model's own.
    """

    def __init__(self, linear: nn.Linear, packed: PackedWeight) -> None:
        """Take the place of a layer whose matrix is packed."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_parameter("weight", None)
        self.bias = linear.bias
        self.packed = packed

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gives it
        """Returns `[..., out]` of inputs `[..., in]`."""
        product: Tensor = _FrozenProduct.apply(input, self.packed, self.bias)  # type: ignore[no-untyped-call]
        return product


class _FrozenProduct(torch.autograd.Function):
    """Product with a packed matrix; the backward pass unpacks it again instead of keeping it."""

    @staticmethod
    @torch.no_grad()
    def forward(ctx: Any, seen: Tensor, packed: PackedWeight, bias: Tensor | None) -> Tensor:
        ctx.packed = packed
        return functional.linear(seen, packed.unpack().to(seen.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad @ ctx.packed.unpack().to(grad.dtype), None, None
