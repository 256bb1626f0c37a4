"""A training step: columns → packed → scored → losses → update, five values and the functions from each to the next.

An update computes its micro-batches one after another, each with its forward and its backward pass, so that only the
activations of one are in memory. `TorchTrainer` has the proofs and the counts around it, and merges the metrics.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import torch
from torch import Tensor

from areal_actors.core.errors import ArealError, EngineError, UntrainableBatch
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import TrainingSequence
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, refuse_unused_spans
from areal_actors.training.critic import Critic
from areal_actors.training.optimization import Optimization
from areal_actors.training.packing.scoring import TokenScorer, ValueScorer
from areal_actors.training.packing.tensors import MicroBatch, Sharing, make_micro_batches
from areal_actors.training.ranks import Ranks, TokenColumn
from areal_actors.training.references import FrozenModel, Role
from areal_actors.training.step_columns import reward_metrics
from areal_actors.training.step_data import cut_sequences, drop_masked_tokens

Columns = TypeVar("Columns", StepTokens, Advantages)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# ---------------------------------------------------------------- the five values


class StepData(msgspec.Struct, frozen=True, kw_only=True):
    """Columns: a step before its first update, with the advantages of its tokens and the sequences of each update."""

    sequences: Sequence[TrainingSequence]
    """The loss trains the tokens of their masks."""
    tokens: StepTokens
    """Columns of the trained tokens, on the CPU."""
    advantages: Advantages
    """Advantages of the trained tokens, on the CPU; `kept` is already applied."""
    minibatches: list[list[int]]
    """Indices of the sequences of each update."""
    metrics: dict[str, float]


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """The micro-batches of an update, and the columns that its loss takes, on the device."""

    micro_batches: list[MicroBatch]
    """Those of this replica."""
    tokens: StepTokens
    advantages: Advantages
    weights: Tensor
    """float32 `[all tokens]`: weight of each in the loss; see `token_weights`."""
    proximal: Tensor | None
    """float32 `[all tokens]`: log-probabilities at the start of the step; None if those of its own pass serve."""
    exact: bool
    """See `Batch.proximal_exact`."""


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """A micro-batch and what the trained model computes for its tokens."""

    batch: MicroBatch
    outputs: Tensor
    """Log-probabilities, or values of a scalar head: float32 `[tokens]` with gradient."""
    measures: dict[str, Tensor]
    """`[tokens]` each, without gradient."""
    entropy: Tensor | None = None
    """float32 `[tokens]` with gradient, if the loss takes it."""


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of a micro-batch."""

    batch: MicroBatch
    loss: Tensor
    """Weighted sum over its tokens, with gradient; 0 for a filler."""
    seen: Batch | None
    """Columns that the loss took; None for a filler, which has no tokens."""
    proximal: Tensor
    """float32 `[tokens]`: log-probabilities at the start of the step, or of its own pass."""
    measures: dict[str, Tensor]
    """`[tokens]` each, of the model and of the loss."""


class Update(msgspec.Struct, frozen=True):
    """An update whose gradient is computed and clipped."""

    loss: float
    grad_norm: float
    """Before clipping."""


# ---------------------------------------------------------------- the functions between them


def raise_untrainable(compute: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Have a computation that changes no weight raise UntrainableBatch in place of exceptions other than `ArealError`.

    One batch of a shape that the code or the device's memory cannot take would otherwise end the trainer at every
    restart.
    """

    @functools.wraps(compute)
    def compute_or_raise(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return compute(*args, **kwargs)
        except ArealError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            raise UntrainableBatch(
                f"its forward or backward pass failed: {type(error).__name__}: {error} ({place})"
            ) from error

    return compute_or_raise


class StepPipe:
    """The functions of a step, on the models that they run."""

    def __init__(
        self,
        algorithm: Algorithm,
        scorer: TokenScorer | ValueScorer,
        optimization: Optimization,
        ranks: Ranks,
        device: torch.device,
        *,
        frozen: Mapping[Role, FrozenModel],
        critic: Critic | None,
        microbatch_tokens: int,
        sharing: Sharing,
        routes: RouteShape | None,
    ) -> None:
        """Use these models on a device.

        `scorer` and `optimization` are of the trained model, `critic` learns from the same micro-batches; the other
        arguments are as in `make_micro_batches`.
        """
        self._algorithm = algorithm
        self._needs = algorithm.needs
        self._scorer = scorer
        self._optimization = optimization
        self._ranks = ranks
        self._device = device
        self._frozen = frozen
        self._critic = critic
        self._microbatch_tokens = microbatch_tokens
        self._sharing = sharing
        self._routes = routes
        self.optimizations = [optimization, *([critic.optimization] if critic else [])]

    def make_columns(
        self, sequences: Sequence[TrainingSequence], tokens: StepTokens, minibatches: list[list[int]]
    ) -> StepData:
        """Columns: add those that need a forward pass, and the advantages; remove tokens that the algorithm masks.

        Proximal log-probabilities are those of the weights at the start of the step. The first update still has these
        weights, so a single update takes them from its own forward pass.

        Raises:
            UntrainableBatch: no token is kept.
        """
        columns: dict[str, Tensor] = {
            role: self._compute_column(sequences, minibatches, model) for role, model in self._frozen.items()
        }
        if "proximal" in self._needs:
            columns["proximal"] = self.logp(sequences)
        if "values" in self._needs:
            columns["values"] = self.values(sequences)
        if "last_values" in self._needs:
            columns["last_values"] = torch.zeros(len(sequences))
            cut, ended = cut_sequences(sequences, tokens)
            if cut:
                columns["last_values"][cut] = self.values(ended)
        tokens = msgspec.structs.replace(tokens, **columns)
        refuse_unused_spans(self._algorithm, tokens)
        advantages = self._algorithm.advantages(tokens)
        metrics = reward_metrics(sequences, tokens, advantages)
        if advantages.kept is not None:
            sequences, tokens, advantages = drop_masked_tokens(sequences, tokens, advantages)
        trained = set(tokens.sequences.tolist())
        minibatches = [indices for indices in minibatches if trained.intersection(indices)]
        if len(minibatches) > 1 and self._algorithm.recomputes_proximal and tokens.proximal is None:
            proximal = self._compute_column(sequences, minibatches, lambda batch: self.score(batch).outputs)
            tokens = msgspec.structs.replace(tokens, proximal=proximal)
        return StepData(
            sequences=sequences, tokens=tokens, advantages=advantages, minibatches=minibatches, metrics=metrics
        )

    def pack(self, data: StepData, number: int) -> Packed:
        """Packed: the micro-batches of an update; the columns of `data` are on the device."""
        indices, several = data.minibatches[number], len(data.minibatches) > 1
        proximal = data.tokens.proximal if several else None
        return Packed(
            weights=token_weights(self._algorithm, data.tokens, indices),
            micro_batches=self._micro_batches(data.sequences, indices),
            tokens=data.tokens,
            advantages=data.advantages,
            proximal=proximal,
            exact=number == 0 or proximal is not None,
        )

    def score(self, batch: MicroBatch) -> Scored:
        """Scored: the forward pass of the trained model."""
        if isinstance(self._scorer, ValueScorer):
            values = self._scorer(batch)
            return Scored(batch=batch, outputs=values, measures={"value_mean": values.detach()})
        logp, entropy = self._scorer(batch)
        taken = entropy if self._algorithm.rewards_entropy else None
        return Scored(batch=batch, outputs=logp, measures={"entropy": entropy.detach()}, entropy=taken)

    def compute_losses(self, packed: Packed, scored: Scored) -> Losses:
        """Losses: those of the algorithm, summed with the weights of the tokens."""
        batch, outputs = scored.batch, scored.outputs
        if not len(outputs):
            return Losses(batch=batch, loss=outputs.sum() * 0.0, seen=None, proximal=outputs.detach(), measures={})
        proximal = outputs.detach() if packed.proximal is None else packed.proximal[batch.token_index]
        seen = loss_batch(batch, packed.tokens, packed.advantages, proximal, exact=packed.exact)
        taken = seen if scored.entropy is None else msgspec.structs.replace(seen, entropy=scored.entropy)
        token_losses = self._algorithm.loss(taken, outputs)
        return Losses(
            batch=batch,
            loss=(token_losses.losses * packed.weights[batch.token_index]).sum(),
            seen=seen,
            proximal=proximal,
            measures=scored.measures | token_losses.measures,
        )

    @raise_untrainable
    def compute_update(self, data: StepData, number: int, observe: Callable[[Losses], None], name: str) -> Update:
        """Update: the clipped gradient of all micro-batches; the weights stay unchanged.

        Raises:
            UntrainableBatch: loss or gradient is not finite, or a pass failed.
        """
        packed = self.pack(data, number)
        seen: list[Batch | None] = []
        total = torch.zeros((), dtype=torch.float64, device=self._device)

        def backward(_: MicroBatch, scored: Scored) -> None:
            losses = self.compute_losses(packed, scored)
            self._optimization.backward(losses.loss)
            total.add_(losses.loss.detach())
            seen.append(losses.seen)
            observe(losses)

        self._optimization.zero_grad()
        self._ranks.run_micro_batches(packed.micro_batches, self.score, backward)
        if self._critic:
            self._critic.zero_grad()
            self._critic.backward(packed.micro_batches, seen, packed.weights)
        loss = float(self._ranks.all_reduce(total))
        update = Update(loss, self._optimization.clip(loss, name))
        if self._critic:
            self._critic.clip(name)
        return update

    def train(
        self, data: StepData, observe: Callable[[Losses], None], name: str
    ) -> tuple[list[Update], list[UntrainableBatch]]:
        """All updates of a step, one after another, each applied by the optimizers; and the errors of those skipped.

        Args:
            data: the columns.
            observe: called with the losses of each micro-batch after its backward pass.
            name: of the step, for errors.
        """
        on_device = _to_device(data, self._device)
        updates, skipped = list[Update](), list[UntrainableBatch]()
        for number in range(len(data.minibatches)):
            try:
                update = self.compute_update(on_device, number, observe, name)
            except UntrainableBatch as error:
                skipped.append(error)
                continue
            for optimization in self.optimizations:
                optimization.optimizer.step()
            updates.append(update)
        return updates, skipped

    # ------------------------------------------------------------ forward passes alone

    @torch.no_grad()
    def evaluate(self, data: StepData, observe: Callable[[Losses], None]) -> float:
        """The loss of the first update under the current weights, without gradient."""
        packed = self.pack(_to_device(data, self._device), 0)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for batch in packed.micro_batches:
            losses = self.compute_losses(packed, self.score(batch))
            total += losses.loss
            observe(losses)
        return float(self._ranks.all_reduce(total))

    def logp(self, sequences: Sequence[TrainingSequence]) -> Tensor:
        """See `TorchTrainer.logp`."""
        if isinstance(self._scorer, ValueScorer):
            raise EngineError(
                f"logp: {type(self._algorithm).__name__} trains a scalar head, which has no log-probabilities"
            )
        return self._compute_column(sequences, [range(len(sequences))], lambda batch: self.score(batch).outputs)

    def values(self, sequences: Sequence[TrainingSequence]) -> Tensor:
        """See `TorchTrainer.values`."""
        model = self._scorer if isinstance(self._scorer, ValueScorer) else self._critic
        if model is None:
            raise EngineError(f"values: {type(self._algorithm).__name__} has neither a critic nor a scalar head")
        return self._compute_column(sequences, [range(len(sequences))], model)

    @torch.no_grad()
    def _compute_column(
        self,
        sequences: Sequence[TrainingSequence],
        minibatches: Sequence[Sequence[int]],
        model: Callable[[MicroBatch], Tensor],
    ) -> Tensor:
        """Output of a model for each trained token, as packed for the updates: float32 `[tokens]` on the CPU."""
        collected = TokenColumn()
        for indices in minibatches:
            for batch in self._micro_batches(sequences, indices):
                collected.add(batch, model(batch))
        return collected.gather(self._ranks, sum(int(sequence.loss_mask[1:].sum()) for sequence in sequences))

    def _micro_batches(self, sequences: Sequence[TrainingSequence], indices: Sequence[int]) -> list[MicroBatch]:
        """Makes this replica's micro-batches of some sequences."""
        tokens = sum(len(sequences[index].token_ids) for index in indices)
        return self._ranks.distribute(
            make_micro_batches(
                sequences,
                indices,
                self._ranks.budget(tokens, self._microbatch_tokens),
                self._device,
                whole_groups=self._algorithm.whole_groups,
                sharing=self._sharing,
                routes=self._routes,
            )
        )


def token_weights(algorithm: Algorithm, tokens: StepTokens, indices: Sequence[int]) -> Tensor:
    """Weight of each token in the loss of an update on these sequences.

    float32 `[tokens]`, 0 for tokens of other sequences.
    """
    counts = tokens.calls.bincount(minlength=len(tokens.rewards)).double()
    dealt = torch.isin(tokens.call_sequences, torch.tensor(indices, dtype=torch.int64, device=counts.device))
    counts[dealt] = algorithm.shares(counts[dealt], tokens.samples[dealt])
    return (counts * dealt)[tokens.calls].float()


def loss_batch(
    batch: MicroBatch, tokens: StepTokens, advantages: Advantages, proximal: Tensor, *, exact: bool
) -> Batch:
    """Makes the `Batch` that the loss takes.

    `tokens` and `advantages` are on its device, `exact` is `Batch.proximal_exact`.
    """
    at = batch.token_index

    def of(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[at]

    calls, versions, rescored = tokens.calls[at], tokens.versions[at], of(tokens.rescored)
    return Batch(
        sequences=tokens.sequences[at],
        groups=tokens.groups[tokens.samples[calls]],
        rewards=tokens.rewards[calls].float(),
        advantages=advantages.tokens[at],
        behaviour=tokens.behaviour[at],
        versions=versions,
        weight_version=tokens.weight_version,
        proximal=proximal,
        proximal_exact=exact,
        reference=of(tokens.reference),
        teacher=of(tokens.teacher),
        values=of(tokens.values),
        returns=of(advantages.returns),
        rescored=None if rescored is None else proximal.where(versions == tokens.weight_version, rescored),
    )


def _to_device(data: StepData, device: torch.device) -> StepData:
    """Copy the columns to a device."""

    def move(columns: Columns) -> Columns:
        own = msgspec.structs.asdict(columns)
        moved = {name: value.to(device) for name, value in own.items() if isinstance(value, Tensor)}
        return msgspec.structs.replace(columns, **moved)

    return msgspec.structs.replace(data, tokens=move(data.tokens), advantages=move(data.advantages))
