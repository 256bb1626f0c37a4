"""The trainer in one process: plain torch on one device, any causal language model of Hugging Face.

A step is: advantages over the whole batch, micro-batches in order of length, the algorithm's loss summed with shares
fixed beforehand, gradient clipping, AdamW. Master weights and optimizer state are float32. The model runs without
dropout, so that the only difference between sampling and training is the weights. Metrics hold no times: the same
rows and weights give the same numbers, on a CPU to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from areal_actors.algorithms.base import Algorithm, Batch
from areal_actors.engines import trainer_state
from areal_actors.engines.parity import Parity
from areal_actors.engines.scoring import Scorer
from areal_actors.engines.settings import OptimizerSettings, TrainerSettings
from areal_actors.engines.weights import write_weights
from areal_actors.errors import EngineError, SetupError
from areal_actors.tensors import MicroBatch, arrange
from areal_actors.values import Row, WeightsLocation


def learning_rate(settings: OptimizerSettings, step: int, total_steps: int) -> float:
    """The learning rate of the step counted from 0: a linear warm-up, then constant, or falling towards 0 at the end."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    progress = min(1.0, (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps))
    if settings.schedule == "linear":
        return settings.lr * (1.0 - progress)
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.lr


class Tally:
    """Means, and maxima of what is named `…_max`, over the trained tokens of a step."""

    def __init__(self) -> None:
        self.tokens = 0
        self._sums: dict[str, float] = {}
        self._largest: dict[str, float] = {}

    def add(self, columns: dict[str, Tensor]) -> None:
        """Count columns `[tokens]` of one micro-batch."""
        for name, column in columns.items():
            if name.endswith("_max"):
                self._largest[name] = max(self._largest.get(name, -math.inf), float(column.max()))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + float(column.sum(dtype=torch.float64))
        self.tokens += len(next(iter(columns.values())))

    def metrics(self) -> dict[str, float]:
        """All of it by name."""
        return {name: total / self.tokens for name, total in self._sums.items()} | self._largest


class TorchTrainer:
    """A `TrainingEngine` that owns its process: it sets torch's number of threads and silences progress bars."""

    def __init__(
        self,
        model_folder: str,
        algorithm: Algorithm,
        settings: TrainerSettings,
        *,
        total_steps: int,
        temperature: float = 1.0,
        max_staleness: int = 2,
        seed: int = 0,
    ) -> None:
        """Load the model.

        Args:
            model_folder: Hugging Face folder with configuration, weights, tokenizer and chat template.
            algorithm: gives advantages and loss.
            settings: the recipe's `[trainer]`.
            total_steps: at which the schedule ends.
            temperature: that of sampling; log-probabilities are taken at the same.
            max_staleness: how many versions old a trained token can be, and so how many older weights are kept.
            seed: of the order in which groups are dealt out to minibatches.

        Raises:
            SetupError: the folder holds no model.
            EngineError: the model or the temperature cannot be trained.
        """
        torch.set_num_threads(settings.threads)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._device = _device(settings.device)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise SetupError(f"{model_folder}: no model can be loaded from this folder: {error}") from error
        self._model = model.to(self._device).eval()
        self._model_folder = model_folder
        self._algorithm = algorithm
        self._settings = settings
        self._total_steps = total_steps
        self._scorer = Scorer(self._model, temperature, torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=settings.optimizer.lr,
            betas=settings.optimizer.betas,
            weight_decay=settings.optimizer.weight_decay,
            fused=True,
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._parity = Parity(self._scorer, max_staleness + 1, settings.parity_rows, settings.microbatch_tokens)
        self.weight_version = 0
        self._parity.remember(0)

    # ------------------------------------------------------------ a step

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Take one step on a batch of rows and return its metrics.

        Raises:
            EngineError: no row has a trained token, or a reward, the loss or the gradient is not finite.
        """
        if not any(row.loss_mask[1:].any() for row in rows):
            raise EngineError("no row of the batch has a trained token: everything in it was masked, or nothing was sampled")
        difference, compared = self._parity.compare(rows, self.weight_version)
        advantages, metrics = self._advantages(rows)
        tally = Tally()
        losses: list[float] = []
        norms: list[float] = []
        lr = learning_rate(self._settings.optimizer, self.weight_version, self._total_steps)
        for update, proximal in self._updates(rows):
            loss, norm = self._update(rows, advantages, update, proximal, lr, tally)
            losses.append(loss)
            norms.append(norm)
        self.weight_version += 1
        self._parity.remember(self.weight_version)
        return {
            "loss": sum(losses) / len(losses),
            "grad_norm": max(norms),
            "lr": lr,
            "trained_tokens": float(tally.tokens),
            "rows": float(len(rows)),
            "max_logprob_difference": difference,
            "parity_tokens": float(compared),
            **metrics,
            **tally.metrics(),
        }

    def _advantages(self, rows: Sequence[Row]) -> tuple[Tensor, dict[str, float]]:
        """Advantage of each row, float32 `[rows]`, and what there is to say of rewards and advantages."""
        rewards = torch.tensor([row.reward for row in rows], dtype=torch.float64)
        if not rewards.isfinite().all():
            bad = int((~rewards.isfinite()).nonzero()[0])
            raise EngineError(f"the reward of row {bad} (group {rows[bad].group}) is {rows[bad].reward}; rewards must be finite")
        groups = torch.tensor([row.group for row in rows], dtype=torch.int64)
        advantages = self._algorithm.advantages(rewards, groups)
        present, with_signal = set(groups.tolist()), set(groups[advantages != 0].tolist())
        metrics = {
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std(correction=0)),
            "advantage_mean": float(advantages.mean()),
            "advantage_std": float(advantages.std(correction=0)),
            "advantage_max": float(advantages.max()),
            "advantage_min": float(advantages.min()),
            "groups": float(len(present)),
            "groups_without_signal": float(len(present) - len(with_signal)),
        }
        return advantages.to(self._device, torch.float32), metrics

    def _updates(self, rows: Sequence[Row]) -> list[tuple[list[MicroBatch], list[Tensor] | None]]:
        """The micro-batches of each optimizer update, with their proximal log-probabilities.

        Proximal log-probabilities are those of the weights at the start of the step. The first update still has
        these weights, so if it is the only one, its own forward pass gives them (None here).
        """
        updates = []
        for indices in self._deal(rows):
            update = arrange(rows, indices, self._settings.microbatch_tokens, self._device)
            if update:
                updates.append(update)
        if len(updates) == 1:
            return [(updates[0], None)]
        with torch.no_grad():
            return [(update, [self._scorer(batch)[0] for batch in update]) for update in updates]

    def _deal(self, rows: Sequence[Row]) -> list[list[int]]:
        """Indices of the rows of each minibatch: whole groups, in random order if there are several minibatches."""
        groups = sorted({row.group for row in rows})
        count = min(self._algorithm.minibatches, len(groups))
        if count == 1:
            return [list(range(len(rows)))]
        order = torch.randperm(len(groups), generator=self._generator).tolist()
        minibatch = {groups[place]: turn % count for turn, place in enumerate(order)}
        return [[index for index, row in enumerate(rows) if minibatch[row.group] == part] for part in range(count)]

    def _update(
        self,
        rows: Sequence[Row],
        advantages: Tensor,
        update: list[MicroBatch],
        proximal: list[Tensor] | None,
        lr: float,
        tally: Tally,
    ) -> tuple[float, float]:
        """One optimizer update over micro-batches; its loss and the gradient's norm before clipping."""
        tokens = torch.zeros(len(rows), dtype=torch.float64, device=self._device)
        for batch in update:
            tokens.index_add_(0, batch.rows, torch.ones_like(batch.rows, dtype=torch.float64))
        shares = self._algorithm.shares(tokens).to(torch.float32)
        loss = 0.0
        self._optimizer.zero_grad(set_to_none=True)
        for number, batch in enumerate(update):
            logp, entropy = self._scorer(batch)
            seen = Batch(
                rows=batch.rows,
                advantages=advantages[batch.rows],
                behaviour=batch.behaviour,
                proximal=logp.detach() if proximal is None else proximal[number],
            )
            said = self._algorithm.loss(seen, logp)
            part = (said.losses * shares[batch.rows]).sum()
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
            tally.add({"entropy": entropy, **said.measures})
        norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.optimizer.grad_clip))
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                self._optimizer.zero_grad(set_to_none=True)
                raise EngineError(
                    f"the {name} of step {self.weight_version} is {value}; the weights are unchanged by this update; "
                    "lower trainer.optimizer.lr, or set algorithm.behaviour_cap if it is off"
                )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return loss, norm

    # ------------------------------------------------------------ weights in and out

    def publish(self, folder: str) -> WeightsLocation:
        """Write the current weights for inference workers into a new folder."""
        return write_weights(self._model.state_dict(), folder, self._model_folder)

    def save_model(self, folder: str) -> None:
        """Write a Hugging Face folder: configuration, weights, tokenizer and chat template."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self._model.save_pretrained(target)
        trainer_state.copy_tokenizer(Path(self._model_folder), target)

    def save(self, folder: str) -> None:
        """Write a Hugging Face folder, and beside it what training needs to continue."""
        self.save_model(folder)
        trainer_state.write(
            Path(folder),
            {
                "weight_version": self.weight_version,
                "optimizer": self._optimizer.state_dict(),
                "generator": self._generator.get_state(),
                "older_weights": self._parity.copies,
            },
        )

    def load(self, folder: str) -> None:
        """Continue from what `save` wrote.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        state = trainer_state.read(Path(folder))
        trainer_state.restore_weights(self._model, Path(folder))
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self._parity.copies = state["older_weights"]
        self.weight_version = state["weight_version"]


def _device(name: str) -> torch.device:
    """`auto` is cuda where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
