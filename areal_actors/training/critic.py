"""The critic: a second model that learns the value at each token, in the same micro-batches as the policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from areal_actors.training.algorithms.base import INITIAL, Algorithm, Batch, CriticSettings
from areal_actors.training.models import load_model, recompute_activations, write_model
from areal_actors.training.optimization import Optimization
from areal_actors.training.packing.scoring import ValueScorer
from areal_actors.training.packing.tensors import MicroBatch
from areal_actors.training.ranks import Ranks, StepMetricSums
from areal_actors.training.settings import TrainerSettings
from areal_actors.weights.model_hub import model_folder

FOLDER = "critic"
"""Folder within a checkpoint."""


class Critic:
    """The trunk of a language model under a scalar head, with an optimizer of its own."""

    def __init__(
        self,
        settings: CriticSettings,
        policy_folder: str,
        algorithm: Algorithm,
        trainer: TrainerSettings,
        total_steps: int,
        ranks: Ranks,
    ) -> None:
        """Load the critic; it uses the recipe's `[trainer.optimizer]`, except for the learning rate.

        Raises:
            SetupError: the folder holds no model.
            EngineError: the model cannot be trained.
        """
        self._folder = policy_folder if settings.model == INITIAL else model_folder(settings.model)
        self._algorithm = algorithm
        self._ranks = ranks
        self._device = ranks.device(trainer.device)
        dtype = getattr(torch, trainer.dtype)
        model = load_model(self._folder, "value", weights=ranks.first)
        if trainer.recompute_activations:
            recompute_activations(model)
        self.model = ranks.parallelize(model, dtype).to(self._device)
        self.scorer = ValueScorer(self.model, dtype)
        self.optimization = Optimization(
            self.model, msgspec.structs.replace(trainer.optimizer, lr=settings.lr, muon_lr=None), total_steps, ranks
        )
        self._sums = StepMetricSums()
        self._loss = torch.zeros((), dtype=torch.float64, device=self._device)
        self._losses: list[float] = []
        self._norms: list[float] = []

    @torch.no_grad()
    def __call__(self, batch: MicroBatch) -> Tensor:
        """Values float32 `[tokens]`."""
        values: Tensor = self.scorer(batch)
        return values

    def zero_grad(self) -> None:
        """Start an update."""
        self.optimization.zero_grad()
        self._loss = torch.zeros((), dtype=torch.float64, device=self._device)

    def backward(self, micro_batches: Sequence[MicroBatch], seen: Sequence[Batch | None], weights: Tensor) -> None:
        """Add the gradient of micro-batches; `seen` is None for those without selected tokens."""
        each = iter(seen)
        self._ranks.run_micro_batches(
            micro_batches, self.scorer, lambda batch, values: self._backward(batch, values, next(each), weights)
        )

    def _backward(self, batch: MicroBatch, values: Tensor, seen: Batch | None, weights: Tensor) -> None:
        if seen is None:
            self.optimization.backward(values.sum() * 0.0)
            return
        token_losses = self._algorithm.critic_loss(seen, values)
        loss = (token_losses.losses * weights[batch.token_index]).sum()
        self.optimization.backward(loss)
        self._loss += loss.detach()
        self._sums.add(batch, token_losses.measures)

    def clip(self, what: str) -> None:
        """Clip the gradient of an update; `optimization.optimizer` changes the weights afterwards.

        Raises:
            EngineError: loss or gradient is not finite.
        """
        self._losses.append(float(self._ranks.all_reduce(self._loss)))
        self._norms.append(self.optimization.clip(self._losses[-1], f"the critic in {what}"))

    def take_metrics(self) -> dict[str, float]:
        """Returns the metrics of the updates since the last call."""
        metrics = {
            "critic_loss": sum(self._losses) / len(self._losses),
            "critic_grad_norm": max(self._norms),
            "critic_lr": self.optimization.lr,
            **self._sums.metrics(self._ranks)[1],
        }
        self.reset_metrics()
        return metrics

    def reset_metrics(self) -> None:
        """Discard the metrics of unfinished updates."""
        self._sums, self._losses, self._norms = StepMetricSums(), [], []

    def save(self, folder: Path) -> None:
        """Write model and state into `critic/` of a checkpoint."""
        state = self._ranks.full_state_dict(self.model)
        if self._ranks.first:
            write_model(self.model, state, str(folder / FOLDER), self._folder)
        self._ranks.save_state(
            folder / FOLDER, self.model, self.optimization.optimizer, {"steps": self.optimization.steps}
        )

    def load(self, folder: Path) -> None:
        """Load a checkpoint that `save` wrote.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        self.optimization.set_steps(
            self._ranks.load_state(folder / FOLDER, self.model, self.optimization.optimizer)["steps"]
        )
