"""The trainer: plain torch, any causal language model of Hugging Face, on one rank or SPMD on several.

It loads the models, runs the steps of `training/step.py` within what proves and measures them (the comparison of
log-probabilities, routing replay, metrics, versions), and writes and loads weights.
Master weights and optimizer state are float32. Models run without dropout, so that sampling and training differ in the
weights only. Metrics contain no times: the same sequences and weights give the same numbers, bit for bit on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from areal_actors.core.errors import SetupError
from areal_actors.core.values import TrainingSequence, WeightsLocation
from areal_actors.training import trainer_state
from areal_actors.training.algorithms.base import Algorithm, StepTokens
from areal_actors.training.algorithms.off_policy import weight_metrics
from areal_actors.training.critic import Critic
from areal_actors.training.engine import sequence_limits
from areal_actors.training.logprob_check import LogprobCheck, mismatch_metrics
from areal_actors.training.lora import Lora
from areal_actors.training.models import load_model, recompute_activations, write_model
from areal_actors.training.optimization import Optimization
from areal_actors.training.packing.scoring import TokenScorer, ValueScorer, set_up
from areal_actors.training.ranks import SINGLE_PROCESS, Ranks, StepMetricSums, TokenColumn
from areal_actors.training.references import frozen_models
from areal_actors.training.routing_replay import RoutingReplay
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.step import Losses, StepData, StepPipe, raise_untrainable
from areal_actors.training.step_data import make_minibatches, step_tokens
from areal_actors.weights.source_tensors import checkpoint_tensors
from areal_actors.weights.transfer import checksum, without_ties, write_weights

STATE = {"weight_version", "schedule", "generator", "older_weights"}
"""Fields of a checkpoint besides weights and optimizer."""


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
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        """Load the model, and the further models that the algorithm needs.

        Args:
            model_folder: Hugging Face folder with configuration, weights, tokenizer and chat template.
            algorithm: defines advantages, loss, and the further models.
            settings: the recipe's `[trainer]`.
            total_steps: step at which the schedule ends.
            temperature: sampling temperature; log-probabilities are computed at the same.
            max_staleness: maximum age of a trained token in versions, and so the number of older weights kept.
            seed: seeds the assignment of groups to minibatches and the initial weights of an adapter.
            ranks: the processes that train together.

        Raises:
            SetupError: a folder contains no such model, or settings of the recipe contradict each other.
            EngineError: the model or the temperature cannot be trained.
        """
        torch.set_num_threads(settings.threads)
        algorithm = algorithm.resolve()
        self._device = ranks.device(settings.device)
        self._model_folder = model_folder
        self.limits = sequence_limits(model_folder)
        self._algorithm = algorithm
        self._needs_rescored = "rescored" in algorithm.needs
        self._settings = settings
        self._ranks = ranks
        dtype = getattr(torch, settings.dtype)
        self._published_dtype: torch.dtype = getattr(torch, settings.published_dtype)
        model = load_model(model_folder, algorithm.head, weights=ranks.first)
        if settings.lora and algorithm.head == "value":
            raise SetupError(
                f"trainer.lora: an adapter cannot train the scalar head of {type(algorithm).__name__}; remove"
                " [trainer.lora]"
            )
        self._lora = (
            Lora(model, model_folder, settings.lora, seed, self._device, self._published_dtype)
            if settings.lora
            else None
        )
        self._adapter = self._lora if settings.lora and settings.lora.published == "adapter" else None
        if settings.recompute_activations:
            recompute_activations(model)
        self._model: Any = ranks.parallelize(model, dtype).to(self._device)
        self._scorer = (
            TokenScorer(self._model, temperature, dtype, entropy_gradient=algorithm.rewards_entropy)
            if algorithm.head == "tokens"
            else ValueScorer(self._model, dtype)
        )
        self._optimization = Optimization(self._model, settings.optimizer, total_steps, ranks)
        self._frozen = frozen_models(algorithm, self._scorer, model_folder, self._lora, ranks)
        self._critic = (
            Critic(algorithm.critic, model_folder, algorithm, settings, total_steps, ranks)
            if algorithm.critic
            else None
        )
        self._generator = torch.Generator().manual_seed(seed)
        critics = [self._critic.scorer] if self._critic else []
        scorers: list[TokenScorer | ValueScorer] = [
            self._scorer,
            *critics,
            *(frozen.scorer for frozen in self._frozen.values()),
        ]
        sharing = set_up(scorers, settings.prefix_sharing, compiles=settings.compile)
        self._replay = RoutingReplay.of(self._scorer, model_folder, settings)
        routes = self._replay.shape if self._replay else None
        self._pipe = StepPipe(
            algorithm,
            self._scorer,
            self._optimization,
            ranks,
            self._device,
            frozen=self._frozen,
            critic=self._critic,
            microbatch_tokens=settings.microbatch_tokens,
            sharing=sharing,
            routes=routes,
        )
        compared = settings.logprob_check_sequences if algorithm.head == "tokens" else 0
        self._logprob_check = LogprobCheck(
            self._scorer,
            max_staleness + 1,
            compared,
            settings.microbatch_tokens,
            ranks,
            sharing,
            older_weights=settings.older_weights,
            complete=self._needs_rescored,
            published=ranks is SINGLE_PROCESS and self._device.type == "cpu" and self._published_dtype == torch.float32,
            routes=routes,
        )
        self.weight_version = 0
        self._logprob_check.store_copy(0)

    # ------------------------------------------------------------ a step

    def step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """See `TrainingEngine.step`; raises EngineError if a reward is not finite."""
        if not sequences:
            self._advance_version()
            return {}
        return self.update(self.prepare(sequences))

    @raise_untrainable
    def prepare(self, sequences: Sequence[TrainingSequence]) -> StepData:
        """Compute columns, advantages and minibatches of a step under the current weights, which stay unchanged.

        Raises:
            EngineError: no sequence has a trained token, a reward is not finite, or a forward pass failed.
        """
        tokens = step_tokens(sequences, self.weight_version)
        rescored = self._logprob_check.rescore(sequences, self.weight_version)
        parity = mismatch_metrics(sequences, tokens.behaviour, rescored)
        minibatches = make_minibatches(sequences, self._algorithm.minibatches, self._generator)
        data = self._pipe.make_columns(sequences, msgspec.structs.replace(tokens, rescored=rescored), minibatches)
        return msgspec.structs.replace(data, metrics={"sequences": float(len(sequences)), **parity, **data.metrics})

    def update(self, data: StepData) -> dict[str, float]:
        """All updates of a step, and one step of the schedule.

        Raises:
            UntrainableBatch: the loss or the gradient of every update is not finite or its computation failed; weights
                and optimizer are unchanged. If that is so for some updates only, these are skipped.
        """
        if self._critic:
            self._critic.reset_metrics()
        if self._replay:
            self._replay.reset()
        sums, start = StepMetricSums(), TokenColumn()

        def observe(losses: Losses) -> None:
            start.add(losses.batch, losses.proximal)
            if losses.seen is not None:
                sums.add(losses.batch, losses.measures)

        updates, skipped = self._pipe.train(data, observe, f"step {self.weight_version}")
        if not updates:
            raise skipped[0]
        critic = self._critic.take_metrics() if self._critic else {}
        lr = self._optimization.lr
        self._advance_version()
        measured = {
            "loss": sum(update.loss for update in updates) / len(updates),
            "grad_norm": max(update.grad_norm for update in updates),
            "lr": lr,
        }
        measured |= {"skipped_updates": float(len(skipped))} if skipped else {}
        measured |= self._lora.metrics if self._lora else {}
        if self._replay:
            measured |= self._replay.metrics(data.sequences, self._ranks, self._device)
        counts, means = sums.metrics(self._ranks)
        return measured | data.metrics | counts | means | self._off_policy_metrics(data.tokens, start) | critic

    def _off_policy_metrics(self, tokens: StepTokens, start: TokenColumn) -> dict[str, float]:
        """Metrics of the step's importance weights; none for sequences that no policy sampled."""
        if not self._algorithm.learns_from_samples:
            return {}
        proximal = start.gather(self._ranks, len(tokens.sequences))
        rescored = tokens.rescored
        if rescored is not None and self._needs_rescored:
            rescored = proximal.where(tokens.versions == tokens.weight_version, rescored)
        return weight_metrics(tokens.sequences, tokens.behaviour, proximal, rescored)

    def _advance_version(self) -> None:
        """End a step: the weights, changed or not, become the next version."""
        for optimization in self._pipe.optimizations:
            optimization.set_steps(optimization.steps + 1)
        self.weight_version += 1
        self._logprob_check.store_copy(self.weight_version)

    # ------------------------------------------------------------ forward passes alone

    def evaluate(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """See `TrainingEngine.evaluate`."""
        tokens = step_tokens(sequences, self.weight_version)
        if self._needs_rescored:
            rescored = self._logprob_check.rescore(sequences, self.weight_version)
            tokens = msgspec.structs.replace(tokens, rescored=rescored)
        data = self._pipe.make_columns(sequences, tokens, [list(range(len(sequences)))])
        sums = StepMetricSums()

        def observe(losses: Losses) -> None:
            if losses.seen is not None:
                sums.add(losses.batch, losses.measures)

        measured = {"loss": self._pipe.evaluate(data, observe), "sequences": float(len(sequences))}
        counts, means = sums.metrics(self._ranks)
        return measured | data.metrics | counts | means

    def logp(self, sequences: Sequence[TrainingSequence]) -> Tensor:
        """Log-probabilities under the current weights, float32 `[tokens]` on the CPU.

        Trained tokens, sequence after sequence.
        """
        return self._pipe.logp(sequences)

    def values(self, sequences: Sequence[TrainingSequence]) -> Tensor:
        """Values of the critic, or of the trained scalar head, just before each trained token.

        float32 `[tokens]` on the CPU.
        """
        return self._pipe.values(sequences)

    # ------------------------------------------------------------ weights in and out

    def publish(self, folder: str) -> WeightsLocation:
        """Write the current weights (or the adapter alone) into a new folder for inference workers."""
        torch.cuda.empty_cache()  # an engine that loads these weights may allocate on the same device
        state = self._state_to_publish()
        if not self._ranks.first:
            return WeightsLocation(folder=folder, checksum="", model=self._model_folder)
        if self._adapter is not None:
            return self._adapter.publish(state, folder)
        self._logprob_check.note_published(self.weight_version, folder)
        return write_weights(state, folder, self._model_folder, dtype=self._published_dtype)

    def checksum(self) -> str:
        """Checksum of the current weights (or of the adapter), as `publish` returns it.

        Empty on ranks that do not report.
        """
        state = self._state_to_publish()
        if not self._ranks.first:
            return ""
        return (
            checksum(self._adapter.factors(state))
            if self._adapter
            else checksum(without_ties(state), self._published_dtype)
        )

    def _state_to_publish(self) -> dict[str, Tensor]:
        """Returns the adapter's tensors if it is published alone, else those of the whole model, an adapter merged."""
        state = self._ranks.full_state_dict(self._model, Lora.is_adapter_tensor if self._adapter else None)
        if self._adapter or not state:
            return state
        return dict(checkpoint_tensors(self._model, self._lora.merge(state) if self._lora else state))

    def save_model(self, folder: str) -> None:
        """Write a Hugging Face folder: configuration, weights (an adapter's merged), tokenizer and chat template."""
        state = self._ranks.full_state_dict(self._model)
        if not self._ranks.first:
            return
        write_model(self._model, self._lora.merge(state) if self._lora else state, folder, self._model_folder)
        if self._lora:
            self._lora.save(state, Path(folder))

    def save(self, folder: str) -> None:
        """Write a Hugging Face folder, and the training state that `load` needs."""
        self.save_model(folder)
        if self._critic:
            self._critic.save(Path(folder))
        rest = {
            "weight_version": self.weight_version,
            "schedule": {"steps": self._optimization.steps},
            "generator": self._generator.get_state(),
            "older_weights": self._logprob_check.copies,
        }
        self._ranks.save_state(Path(folder), self._model, self._optimization.optimizer, rest)

    def load(self, folder: str) -> None:
        """See `TrainingEngine.load`."""
        rest = self._ranks.load_state(Path(folder), self._model, self._optimization.optimizer)
        trainer_state.check_fields(rest, STATE, Path(folder))
        if self._critic:
            self._critic.load(Path(folder))
        self._optimization.set_steps(rest["schedule"]["steps"])
        self._generator.set_state(rest["generator"])
        self._logprob_check.restore(rest["older_weights"])
        self.weight_version = rest["weight_version"]
