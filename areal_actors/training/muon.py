"""Muon for the hidden weights of a model, AdamW for the others.

Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) makes the momentum of a matrix
orthogonal by five Newton-Schulz iterations. Embeddings, the head, norms, biases and stacked experts are not such
matrices. A step is scaled to the root mean square of AdamW's, 0.2 √(longer side) (arXiv:2502.16982, section 2.2), so
that learning rates of AdamW apply.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from areal_actors.training.models import HEAD
from areal_actors.training.settings import OptimizerSettings

MOMENTUM = 0.95
MATRIX = 2
"""Dimensions of the weights that Muon takes."""


def hidden_weights(model: nn.Module) -> list[nn.Parameter]:
    """Returns the trained matrices of a model but embeddings and heads, in the order of its parameters."""
    heads = [getattr(model, HEAD, None), getattr(model, "get_output_embeddings", lambda: None)()]
    outer = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    left_out = {id(weight) for module in (*outer, *heads) if module is not None for weight in module.parameters()}
    return [
        weight
        for weight in model.parameters()
        if weight.requires_grad and weight.ndim == MATRIX and id(weight) not in left_out
    ]


class MuonWithAdamW(Optimizer):
    """One optimizer of two: the first groups are AdamW's, the last is Muon's."""

    def __init__(self, model: nn.Module, parameters: list[nn.Parameter], settings: OptimizerSettings) -> None:
        """Optimize these parameters of a model."""
        hidden = hidden_weights(model)
        chosen = {id(weight) for weight in hidden}
        others = [weight for weight in parameters if id(weight) not in chosen]
        super().__init__(parameters, {})
        self._parts: list[Optimizer] = [
            torch.optim.AdamW(
                others,
                lr=settings.lr,
                betas=settings.betas,
                eps=settings.epsilon,
                weight_decay=settings.weight_decay,
                fused=True,
            ),
            torch.optim.Muon(
                hidden,
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                momentum=MOMENTUM,
                adjust_lr_fn="match_rms_adamw",
            ),
        ]
        self._share_groups()

    def _share_groups(self) -> None:
        """Let the groups of the parts, whose learning rates are set from outside, be those of the whole."""
        self.param_groups = list(chain.from_iterable(part.param_groups for part in self._parts))

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply the gradients of all parameters."""
        for part in self._parts:
            part.step(closure)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of both parts."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of both parts."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()
