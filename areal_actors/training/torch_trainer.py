"""The trainer: plain torch, any causal language model of Hugging Face, on one rank or SPMD on several.

A step computes the columns and advantages of the tokens (`prepare`), then its updates (`update`): micro-batches in
order of length, the algorithm's loss summed with token weights fixed beforehand, gradient clipping, the optimizer.
Master weights and optimizer state are float32. Models run without dropout, so that sampling and training differ in the
weights only. Metrics contain no times: the same sequences and weights give the same numbers, bit for bit on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from areal_actors.core.errors import EngineError, SetupError, UntrainableBatch
from areal_actors.core.values import TrainingSequence, WeightsLocation
from areal_actors.training import trainer_state
from areal_actors.training.algorithms.base import Algorithm, Batch, StepTokens, require
from areal_actors.training.algorithms.off_policy import weight_metrics
from areal_actors.training.critic import Critic
from areal_actors.training.engine import sequence_limits
from areal_actors.training.failed_batch import raise_untrainable
from areal_actors.training.logprob_check import LogprobCheck, mismatch_metrics
from areal_actors.training.lora import Lora
from areal_actors.training.models import load_model, recompute_activations, write_model
from areal_actors.training.optimization import Optimization
from areal_actors.training.packing.scoring import TokenScorer, ValueScorer, set_up
from areal_actors.training.packing.tensors import MicroBatch, make_micro_batches
from areal_actors.training.ranks import SINGLE_PROCESS, Ranks
from areal_actors.training.references import frozen_models
from areal_actors.training.routing_replay import RoutingReplay
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.step_data import (
    Prepared,
    StepMetricSums,
    TokenColumn,
    cut_sequences,
    drop_masked_tokens,
    loss_batch,
    make_minibatches,
    reward_metrics,
    step_tokens,
    to_device,
    token_weights,
)
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
        self._lora = Lora(model, model_folder, settings.lora, seed) if settings.lora else None
        self._adapter = self._lora if settings.lora and settings.lora.published == "adapter" else None
        if settings.recompute_activations:
            recompute_activations(model)
        self._model: Any = ranks.parallelize(model, dtype).to(self._device)
        self._scorer = (
            TokenScorer(self._model, temperature, dtype)
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
        self._sharing = set_up(scorers, settings.prefix_sharing, compiles=settings.compile)
        self._replay = RoutingReplay.of(self._scorer, model_folder, settings)
        self._routes = self._replay.shape if self._replay else None
        compared = settings.logprob_check_sequences if algorithm.head == "tokens" else 0
        self._logprob_check = LogprobCheck(
            self._scorer,
            max_staleness + 1,
            compared,
            settings.microbatch_tokens,
            ranks,
            self._sharing,
            older_weights=settings.older_weights,
            complete="rescored" in algorithm.needs,
            published=ranks is SINGLE_PROCESS and self._device.type == "cpu" and self._published_dtype == torch.float32,
            routes=self._routes,
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
    def prepare(self, sequences: Sequence[TrainingSequence]) -> Prepared:
        """Compute columns, advantages and minibatches of a step under the current weights, which stay unchanged.

        Raises:
            EngineError: no sequence has a trained token, a reward is not finite, or a forward pass failed.
        """
        tokens = step_tokens(sequences, self.weight_version)
        tokens = msgspec.structs.replace(tokens, rescored=self._logprob_check.rescore(sequences, self.weight_version))
        parity = mismatch_metrics(sequences, tokens.behaviour, require(tokens.rescored, "rescored"))
        prepared = self._prepare_columns(
            sequences, tokens, make_minibatches(sequences, self._algorithm.minibatches, self._generator)
        )
        return msgspec.structs.replace(
            prepared, metrics={"sequences": float(len(sequences)), **parity, **prepared.metrics}
        )

    def update(self, prepared: Prepared) -> dict[str, float]:
        """All updates of a step, and one step of the schedule.

        Raises:
            UntrainableBatch: the loss or the gradient of every update is not finite or its computation failed; weights
                and optimizer are unchanged. If that is so for some updates only, these are skipped.
        """
        if self._critic:
            self._critic.reset_metrics()
        if self._replay:
            self._replay.reset()
        sums = StepMetricSums()
        start = TokenColumn()
        losses, norms, skipped = list[float](), list[float](), list[UntrainableBatch]()
        lr = self._optimization.lr
        proximal = prepared.tokens.proximal is not None and len(prepared.minibatches) > 1
        on_device = msgspec.structs.replace(
            prepared,
            tokens=to_device(prepared.tokens, self._device),
            advantages=to_device(prepared.advantages, self._device),
        )
        for number, indices in enumerate(prepared.minibatches):
            try:
                loss, norm = self._backward(on_device, indices, sums, start, first=number == 0, proximal=proximal)
            except UntrainableBatch as error:
                skipped.append(error)
                continue
            for optimization in self._optimizations():
                optimization.optimizer.step()
            losses.append(loss)
            norms.append(norm)
        if not losses:
            raise skipped[0]
        critic = self._critic.take_metrics() if self._critic else {}
        self._advance_version()
        measured = {"loss": sum(losses) / len(losses), "grad_norm": max(norms), "lr": lr}
        measured |= {"skipped_updates": float(len(skipped))} if skipped else {}
        if self._replay:
            measured |= self._replay.metrics(prepared.sequences, self._ranks, self._device)
        counts, means = sums.metrics(self._ranks)
        return measured | prepared.metrics | counts | means | self._off_policy_metrics(prepared.tokens, start) | critic

    def _advance_version(self) -> None:
        """End a step: the weights, changed or not, become the next version."""
        for optimization in self._optimizations():
            optimization.set_steps(optimization.steps + 1)
        self.weight_version += 1
        self._logprob_check.store_copy(self.weight_version)

    def evaluate(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """See `TrainingEngine.evaluate`."""
        prepared = self._prepare_columns(
            sequences, step_tokens(sequences, self.weight_version), [list(range(len(sequences)))]
        )
        tokens, advantages = to_device(prepared.tokens, self._device), to_device(prepared.advantages, self._device)
        weights = token_weights(self._algorithm, tokens, prepared.minibatches[0])
        sums = StepMetricSums()
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        with torch.no_grad():
            for batch in self._micro_batches(prepared.sequences, prepared.minibatches[0]):
                logp, measures = self._forward(batch)
                if len(logp):
                    token_losses = self._algorithm.loss(loss_batch(batch, tokens, advantages, logp, exact=True), logp)
                    loss += (token_losses.losses * weights[batch.token_index]).sum()
                    sums.add(batch, measures | token_losses.measures)
        measured = {"loss": float(self._ranks.all_reduce(loss)), "sequences": float(len(sequences))}
        counts, means = sums.metrics(self._ranks)
        return measured | prepared.metrics | counts | means

    def logp(self, sequences: Sequence[TrainingSequence]) -> Tensor:
        """Log-probabilities under the current weights, float32 `[tokens]` on the CPU.

        Trained tokens, sequence after sequence.
        """
        if isinstance(self._scorer, ValueScorer):
            raise EngineError(
                f"logp: {type(self._algorithm).__name__} trains a scalar head, which has no log-probabilities"
            )
        return self._forward_tokens(sequences, [range(len(sequences))], lambda batch: self._forward(batch)[0])

    def values(self, sequences: Sequence[TrainingSequence]) -> Tensor:
        """Values of the critic, or of the trained scalar head, just before each trained token.

        float32 `[tokens]` on the CPU.
        """
        model = self._scorer if isinstance(self._scorer, ValueScorer) else self._critic
        if model is None:
            raise EngineError(f"values: {type(self._algorithm).__name__} has neither a critic nor a scalar head")
        return self._forward_tokens(sequences, [range(len(sequences))], model)

    def _prepare_columns(
        self, sequences: Sequence[TrainingSequence], tokens: StepTokens, minibatches: list[list[int]]
    ) -> Prepared:
        """Compute the columns that need a forward pass, advantages, and proximal log-probabilities if only updates need them.

        Proximal log-probabilities are those of the weights at the start of the step. The first update still has these weights,
        so a single update takes them from its own forward pass.
        """
        algorithm = self._algorithm
        columns: dict[str, Tensor] = {
            role: self._forward_tokens(sequences, minibatches, model) for role, model in self._frozen.items()
        }
        if "proximal" in algorithm.needs:
            columns["proximal"] = self.logp(sequences)
        if "values" in algorithm.needs:
            columns["values"] = self.values(sequences)
        if "last_values" in algorithm.needs:
            columns["last_values"] = torch.zeros(len(sequences))
            cut, ended = cut_sequences(sequences, tokens)
            if cut:
                columns["last_values"][cut] = self.values(ended)
        if "rescored" in algorithm.needs and tokens.rescored is None:
            columns["rescored"] = self._logprob_check.rescore(sequences, self.weight_version)
        tokens = msgspec.structs.replace(tokens, **columns)
        advantages = algorithm.advantages(tokens)
        metrics = reward_metrics(sequences, tokens, advantages)
        if advantages.kept is not None:
            sequences, tokens, advantages = drop_masked_tokens(sequences, tokens, advantages)
        trained = set(tokens.sequences.tolist())
        minibatches = [indices for indices in minibatches if trained.intersection(indices)]
        if len(minibatches) > 1 and algorithm.recomputes_proximal and tokens.proximal is None:
            proximal = self._forward_tokens(sequences, minibatches, lambda batch: self._forward(batch)[0])
            tokens = msgspec.structs.replace(tokens, proximal=proximal)
        return Prepared(
            sequences=sequences, tokens=tokens, advantages=advantages, minibatches=minibatches, metrics=metrics
        )

    def _off_policy_metrics(self, tokens: StepTokens, start: TokenColumn) -> dict[str, float]:
        """Metrics of the step's importance weights; none for sequences that no policy sampled."""
        if self._algorithm.learns_from != "episodes":
            return {}
        proximal = start.gather(self._ranks, len(tokens.sequences))
        rescored = tokens.rescored
        if rescored is not None and "rescored" in self._algorithm.needs:
            rescored = proximal.where(tokens.versions == tokens.weight_version, rescored)
        return weight_metrics(tokens.sequences, tokens.behaviour, proximal, rescored)

    @raise_untrainable
    def _backward(
        self,
        prepared: Prepared,
        indices: list[int],
        sums: StepMetricSums,
        proximal_of: TokenColumn,
        *,
        first: bool,
        proximal: bool,
    ) -> tuple[float, float]:
        """Compute the clipped gradient of an update on these sequences.

        Returns its loss and the gradient norm before clipping.
        """
        weights = token_weights(self._algorithm, prepared.tokens, indices)
        tokens, advantages = prepared.tokens, prepared.advantages
        parts = self._micro_batches(prepared.sequences, indices)
        seen: list[Batch | None] = []
        total = torch.zeros((), dtype=torch.float64, device=self._device)

        def backward(batch: MicroBatch, outputs: tuple[Tensor, dict[str, Tensor]]) -> None:
            logp, measures = outputs
            if len(logp) == 0:
                proximal_of.add(batch, logp.detach())
                self._optimization.backward(logp.sum() * 0.0)
                seen.append(None)
                return
            start = tokens.proximal[batch.token_index] if proximal and tokens.proximal is not None else logp.detach()
            proximal_of.add(batch, start)
            seen.append(batch_seen := loss_batch(batch, tokens, advantages, start, exact=first or proximal))
            token_losses = self._algorithm.loss(batch_seen, logp)
            part = (token_losses.losses * weights[batch.token_index]).sum()
            self._optimization.backward(part)
            total.add_(part.detach())
            sums.add(batch, measures | token_losses.measures)

        self._optimization.zero_grad()
        self._ranks.run_micro_batches(parts, self._forward, backward)
        if self._critic:
            self._critic.zero_grad()
            self._critic.backward(parts, seen, weights)
        loss = float(self._ranks.all_reduce(total))
        what = f"step {self.weight_version}"
        norm = self._optimization.clip(loss, what)
        if self._critic:
            self._critic.clip(what)
        return loss, norm

    def _forward(self, batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the log-probabilities (or values) for the loss, float32 `[tokens]` with gradient, and measures of them."""
        if isinstance(self._scorer, ValueScorer):
            values = self._scorer(batch)
            return values, {"value_mean": values.detach()}
        logp, entropy = self._scorer(batch)
        return logp, {"entropy": entropy}

    @torch.no_grad()
    def _forward_tokens(
        self,
        sequences: Sequence[TrainingSequence],
        minibatches: Sequence[Sequence[int]],
        model: Callable[[MicroBatch], Tensor],
    ) -> Tensor:
        """Output of a model for each trained token, float32 `[tokens]` on the CPU, in the micro-batches of the updates."""
        collected = TokenColumn()
        for indices in minibatches:
            for batch in self._micro_batches(sequences, indices):
                collected.add(batch, model(batch))
        return collected.gather(self._ranks, sum(int(sequence.loss_mask[1:].sum()) for sequence in sequences))

    def _micro_batches(self, sequences: Sequence[TrainingSequence], indices: Sequence[int]) -> list[MicroBatch]:
        """Makes this rank's micro-batches of some sequences."""
        together = self._algorithm.whole_groups
        budget = self._ranks.budget(
            sum(len(sequences[index].token_ids) for index in indices), self._settings.microbatch_tokens
        )
        return self._ranks.distribute(
            make_micro_batches(
                sequences,
                indices,
                budget,
                self._device,
                whole_groups=together,
                sharing=self._sharing,
                routes=self._routes,
            )
        )

    def _optimizations(self) -> list[Optimization]:
        return [self._optimization, *([self._critic.optimization] if self._critic else [])]

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
