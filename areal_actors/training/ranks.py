"""Collective operations of the processes that train one model, from the view of one rank; and the single-process case.

Each rank runs the same program over the same rows (SPMD). Ranks that hold parts of one copy of the model (tensor,
sequence or pipeline parallel) form a replica; replicas (data parallel) take different micro-batches of a step. Columns
per token are computed for the micro-batches of the replica and then gathered, so that advantages, token weights and
metrics are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from areal_actors.training import trainer_state
from areal_actors.training.distributed import checkpoint
from areal_actors.training.packing.tensors import MicroBatch
from areal_actors.weights.torch_device import torch_device

Output = TypeVar("Output")


def trainable_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Ranks:
    """Collective operations of one rank.

    This class is a single process with the whole model; `ShardedRanks` is one rank of several.
    """

    replica = 0
    """Index of the replica of this process."""
    replicas = 1
    """Number of replicas."""
    first = True
    """True on the one rank that writes files and reports."""
    loss_scale = 1.0
    """Factor of a local loss before its backward pass, which makes the reduced gradient that of the sum over
    replicas."""

    def device(self, name: str) -> torch.device:
        """Device of this rank for `[trainer] device`; `auto` is cuda if available.

        Raises:
            SetupError: there is no such device.
        """
        return torch_device(name, "trainer.device")

    def parallelize(self, model: Any, dtype: torch.dtype) -> Any:  # noqa: ARG002 - autocast applies the dtype
        """Shard or parallelize a model on the CPU, before its optimizer is made; `dtype` is that of its computations.

        The caller moves the result to the device.
        """
        return model

    def budget(self, tokens: int, most: int) -> int:  # noqa: ARG002 - one replica has all the work anyway
        """Token budget of a micro-batch, at most `most`, with which a total of `tokens` gives work to every replica."""
        return most

    def distribute(self, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """Selects this replica's micro-batches; every replica gets the same number, padded with fillers.

        A filler has columns of length 0: it has no loss, but its forward and backward pass run with the others'. On a
        rank without the head all micro-batches have columns of length 0.
        """
        return micro_batches

    def run_micro_batches(
        self,
        micro_batches: Sequence[MicroBatch],
        forward: Callable[[MicroBatch], Output],
        backward: Callable[[MicroBatch, Output], None],
    ) -> None:
        """Run the forward pass of each of this replica's micro-batches, and the backward pass on its output, in order.

        With several pipeline stages, several forward passes may run before the first backward pass.
        """
        for batch in micro_batches:
            backward(batch, forward(batch))

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sums over replicas; the same shape on every rank."""
        return values

    def sum_everywhere(self, counts: Tensor) -> Tensor:
        """Sums over all ranks.

        Those that hold parts of one copy of the model count what is computed on several of them several times.
        """
        return counts

    def merge_metrics(
        self, sums: dict[str, float], largest: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Merges sums and maxima by name over replicas; a replica that had only fillers may lack names."""
        return sums, largest

    def gather(self, column: Tensor, indices: Tensor, tokens: int) -> Tensor:
        """Gathers the column `[tokens]` on every rank from this replica's entries `[n]` at `indices` int64 `[n]`."""
        return column.new_zeros(tokens).index_copy_(0, indices, column)

    def clip(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> float:
        """Scale gradients to a global norm of at most `max_norm`; returns the global norm before."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    def count_trainable(self, model: torch.nn.Module) -> int:
        """Number of trained parameters of the whole model."""
        return sum(parameter.numel() for parameter in trainable_parameters(model))

    def full_state_dict(self, model: torch.nn.Module, wanted: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
        """Full tensors of the model by name (only those `wanted`) on the `first` rank, {} elsewhere.

        Call on every rank.
        In a single process they are the model's own, not copies.
        """
        return {name: tensor for name, tensor in model.state_dict().items() if wanted is None or wanted(name)}

    def save_state(
        self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rest: dict[str, Any]
    ) -> None:
        """Write the training state, next to the Hugging Face folder that the `first` rank has already written."""
        trainer_state.write(
            folder, {"optimizer": optimizer.state_dict(), "adapter": trainer_state.adapter_of(model), "rest": rest}
        )

    def load_state(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Restore the state that `save_state` wrote; returns its `rest`.

        Raises:
            CheckpointError: something is missing, damaged or does not fit.
        """
        state = trainer_state.read(folder)
        if checkpoint.is_in_pieces(state):
            return checkpoint.load(folder, model, optimizer)
        trainer_state.restore(model, folder, state["adapter"])
        optimizer.load_state_dict(state["optimizer"])
        rest: dict[str, Any] = state["rest"]
        return rest


SINGLE_PROCESS = Ranks()
"""Stateless; shared by all trainers."""


class TokenColumn:
    """Collects a column of all trained tokens from micro-batches."""

    def __init__(self) -> None:
        self._columns: list[Tensor] = []
        self._indices: list[Tensor] = []

    def add(self, batch: MicroBatch, column: Tensor) -> None:
        """Add the entries of a micro-batch, `[its tokens]`; also of a filler, which has none."""
        self._columns.append(column)
        self._indices.append(batch.token_index)

    def gather(self, ranks: Ranks, tokens: int) -> Tensor:
        """Gathers the column `[tokens]` of all replicas on the CPU."""
        return ranks.gather(torch.cat(self._columns), torch.cat(self._indices), tokens).cpu()


class StepMetricSums:
    """Means over the trained tokens of a step (maxima for names ending in `_max`), and token counts."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._counts = dict.fromkeys(("trained_tokens", "sequence_tokens", "computed_tokens"), 0.0)

    def add(self, batch: MicroBatch, columns: dict[str, Tensor]) -> None:
        """Add columns `[tokens]` of a micro-batch that has tokens.

        The sums stay on its device, so that nothing waits for it.
        """
        for name, column in columns.items():
            if name.endswith("_max"):
                largest = column.detach().max()
                self._largest[name] = torch.maximum(self._largest[name], largest) if name in self._largest else largest
            else:
                total = column.detach().sum(dtype=torch.float64)
                self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts["trained_tokens"] += len(batch.labels)
        self._counts["sequence_tokens"] += batch.sequence_tokens
        self._counts["computed_tokens"] += batch.computed_tokens

    def metrics(self, ranks: Ranks) -> tuple[dict[str, float], dict[str, float]]:
        """Returns counts, and means and maxima, by name.

        Of the counts, `sequence_tokens` are tokens without prefix sharing, `computed_tokens` those computed.
        """
        sums, largest = ranks.merge_metrics({**_values(self._sums), **self._counts}, _values(self._largest))
        counts = {name: sums.pop(name) for name in self._counts}
        return counts, {name: total / counts["trained_tokens"] for name, total in sums.items()} | largest


def _values(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """Numbers of scalars, copied from their device together."""
    if not scalars:
        return {}
    return dict(zip(scalars, torch.stack([scalar.double() for scalar in scalars.values()]).tolist(), strict=True))
