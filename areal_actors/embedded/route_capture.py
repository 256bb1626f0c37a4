"""Experts that the layers of a mixture of experts choose in the forward passes of the embedded engine."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from areal_actors.core.routes import ANY_EXPERTS, RouteShape

INDICES = 2
"""Index of the chosen experts in a router's output: logits, weights, experts (transformers)."""


class RouteCapture:
    """Keeps the experts of the last forward pass of a model."""

    def __init__(self, base_model: Any, shape: RouteShape) -> None:
        self.width = len(shape.layers) * shape.top_k
        """Entries of a position: those of the first layer with experts, then those of the next."""
        self.dtype = torch.uint8 if shape.experts <= ANY_EXPERTS else torch.int16
        self._chosen: list[Tensor] = [torch.empty(0)] * len(shape.layers)
        for place, number in enumerate(shape.layers):
            base_model.layers[number].mlp.gate.register_forward_hook(partial(self._keep, place))

    def _keep(self, place: int, _router: Any, _inputs: Any, output: tuple[Tensor, ...]) -> None:
        self._chosen[place] = output[INDICES]

    def last(self) -> Tensor:
        """Experts of the last forward pass, `[tokens, width]`, rows of tokens one after another."""
        return torch.cat(self._chosen, 1).to(self.dtype)
