"""Optimizer, learning rate schedule and gradient clipping.

All of it is torch's, except for the formulas of the schedules.
"""

from __future__ import annotations

import math

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from areal_actors.core.errors import UntrainableBatch
from areal_actors.training.muon import MuonWithAdamW
from areal_actors.training.ranks import Ranks, trainable_parameters
from areal_actors.training.settings import OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int, total_steps: int) -> float:
    """Learning rate of a step, counted from 0.

    It rises linearly for `warmup_steps`, then stays, or decays until `total_steps` to `minimum_ratio` of `lr`:
    linearly, or along half a cosine (arXiv:1608.03983, equation 5, without restarts).
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    progress = min(1.0, (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps))
    least = settings.minimum_ratio
    if settings.schedule == "linear":
        return settings.lr * (least + (1.0 - least) * (1.0 - progress))
    if settings.schedule == "cosine":
        return settings.lr * (least + (1.0 - least) * 0.5 * (1.0 + math.cos(math.pi * progress)))
    return settings.lr


def make_optimizer(parameters: list[nn.Parameter], settings: OptimizerSettings) -> Optimizer:
    """Makes the optimizer `settings.name` over float32 parameters; `MuonWithAdamW` asks their model, too."""
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    if settings.name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind(
        parameters,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


class Optimization:
    """The optimizer of one model.

    Gradients are summed over micro-batches and replicas, clipped, checked, and then used.
    """

    def __init__(self, model: nn.Module, settings: OptimizerSettings, total_steps: int, ranks: Ranks) -> None:
        self.parameters = trainable_parameters(model)
        self.optimizer = (
            MuonWithAdamW(model, self.parameters, settings)
            if settings.name == "muon"
            else make_optimizer(self.parameters, settings)
        )
        self._settings = settings
        self._by_recipe = [
            {name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups
        ]
        """Settings of each group of parameters."""
        self._total_steps = total_steps
        self._ranks = ranks
        self.set_steps(0)

    def set_steps(self, steps: int) -> None:
        """Set the learning rate to that after this many steps, and the other settings to those of the recipe.

        Load the optimizer's state first, because it contains settings too.
        A run that goes on under another recipe follows the new recipe.
        """
        self.steps = steps
        for group, by_recipe in zip(self.optimizer.param_groups, self._by_recipe, strict=True):
            group.update(by_recipe)
            group["lr"] = learning_rate(self._settings, steps, self._total_steps)
        if (muon_lr := self._settings.muon_lr) is not None:
            own = msgspec.structs.replace(self._settings, lr=muon_lr)
            self.optimizer.param_groups[-1]["lr"] = learning_rate(own, steps, self._total_steps)

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def zero_grad(self) -> None:
        """Reset gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of the loss of a micro-batch."""
        if self._ranks.loss_scale != 1.0:
            loss = loss * self._ranks.loss_scale
        loss.backward()  # type: ignore[no-untyped-call]

    def clip(self, loss: float, what: str) -> float:
        """Clip the gradient; returns its norm before clipping.

        Raises:
            UntrainableBatch: the loss or the norm is not finite; the gradient is reset.
        """
        norm = self._ranks.clip(self.parameters, self._settings.grad_clip)
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                self.zero_grad()
                raise UntrainableBatch(
                    f"the {name} of {what} is {value}; the weights are unchanged by this update; "
                    "lower trainer.optimizer.lr, or the weight of stale tokens (algorithm.correction)"
                )
        return norm
