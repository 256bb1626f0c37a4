"""The processes that train one model together, as one of them sees it; and the trainer that is alone.

Each rank runs the same program over the same rows (SPMD). Ranks that hold parts of one copy of the model (tensor,
sequence or pipeline parallel) form a replica; replicas (data parallel) take different micro-batches of a step. What the
trainer computes per token it computes for its replica's micro-batches and then gathers into whole columns, so that
advantages, shares and metrics are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from areal_actors.engines import trainer_state
from areal_actors.engines.rank_group import checkpoint
from areal_actors.engines.tensors import MicroBatch
from areal_actors.errors import SetupError

Output = TypeVar("Output")


def trainable_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Ranks(Protocol):
    """The processes that train one model together, as one of them sees it."""

    replica: int
    """Which of the replicas this process belongs to."""
    replicas: int
    """How many copies of the model take micro-batches."""
    first: bool
    """Whether this process writes files and reports; true of one of them."""
    loss_scale: float
    """What a local loss is multiplied with before its backward pass, so that the reduced gradient is that of the sum over replicas."""

    def device(self, name: str) -> torch.device:
        """The device that `[trainer] device` means on this rank; `auto` is cuda where there is one."""
        ...

    def parallelize(self, model: Any, dtype: torch.dtype) -> Any:
        """Shard or parallelise a model that lies loaded on the CPU, before its optimizer is made; `dtype` is that of its computations.

        It is moved to its device afterwards, unless that has moved it already.
        """
        ...

    def budget(self, tokens: int, most: int) -> int:
        """Tokens of a micro-batch, at most `most`, so that so many tokens in all give work to every replica."""
        ...

    def distribute(self, parts: list[MicroBatch]) -> list[MicroBatch]:
        """This replica's micro-batches of all of a step's: as many on each replica, where need be by a filler without tokens.

        A filler has columns of length 0: no loss is asked of it, but its forward and backward pass are run with the others'.
        So have all micro-batches on a rank that holds no head.
        """
        ...

    def run_micro_batches(
        self, parts: Sequence[MicroBatch], forward: Callable[[MicroBatch], Output], backward: Callable[[MicroBatch, Output], None]
    ) -> None:
        """A forward pass for each of this replica's micro-batches, and a backward pass for what it gave, each in their order.

        Several forward passes may run before the first backward pass.
        """
        ...

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over replicas, the same shape on every rank."""
        ...

    def merge_metrics(self, sums: dict[str, float], largest: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """Sums and largest values by name, over replicas; a replica that had fillers only may lack names."""
        ...

    def gather(self, column: Tensor, indices: Tensor, tokens: int) -> Tensor:
        """The whole column `[tokens]` on every rank, of entries `[n]` that this replica has for the indices int64 `[n]`."""
        ...

    def clip(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> float:
        """Scale gradients down to a global norm of at most `max_norm`; the global norm before that."""
        ...

    def count_trainable(self, model: torch.nn.Module) -> int:
        """How many numbers of the whole model are trained."""
        ...

    def full_state_dict(self, model: torch.nn.Module, wanted: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
        """The model's whole tensors by name, those `wanted` only, on `first`; {} elsewhere. Called on every rank."""
        ...

    def save_state(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rest: dict[str, Any]) -> None:
        """Write what training needs to continue, besides the Hugging Face folder that `first` has already written there."""
        ...

    def load_state(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Put back what `save_state` wrote, and return its `rest`.

        Raises:
            CheckpointError: something is missing, damaged or does not fit.
        """
        ...


class SingleProcess:
    """One process with the whole model: everything is as it is, and nothing costs anything."""

    replica = 0
    replicas = 1
    first = True
    loss_scale = 1.0

    def device(self, name: str) -> torch.device:
        """See `Ranks.device`."""
        if name == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise SetupError(f'trainer.device = "{name}" is no device: write "cpu", "cuda" or "auto"') from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise SetupError(f'trainer.device = "{name}", but torch finds no CUDA device: write "cpu" or "auto", or install torch for CUDA')
        return device

    def parallelize(self, model: Any, dtype: torch.dtype) -> Any:  # noqa: ARG002 - autocast sees to the dtype
        """The model itself."""
        return model

    def budget(self, tokens: int, most: int) -> int:  # noqa: ARG002 - one replica has all the work anyway
        """As many as allowed."""
        return most

    def distribute(self, parts: list[MicroBatch]) -> list[MicroBatch]:
        """All of them."""
        return parts

    def run_micro_batches(
        self, parts: Sequence[MicroBatch], forward: Callable[[MicroBatch], Output], backward: Callable[[MicroBatch, Output], None]
    ) -> None:
        """One micro-batch after the other."""
        for part in parts:
            backward(part, forward(part))

    def all_reduce(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def merge_metrics(self, sums: dict[str, float], largest: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """As they are."""
        return sums, largest

    def gather(self, column: Tensor, indices: Tensor, tokens: int) -> Tensor:
        """The column in the order of its indices."""
        return column.new_zeros(tokens).index_copy_(0, indices, column)

    def clip(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> float:
        """See `Ranks.clip`."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    def count_trainable(self, model: torch.nn.Module) -> int:
        """See `Ranks.count_trainable`."""
        return sum(parameter.numel() for parameter in trainable_parameters(model))

    def full_state_dict(self, model: torch.nn.Module, wanted: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
        """The model's own tensors; not copies."""
        return {name: tensor for name, tensor in model.state_dict().items() if wanted is None or wanted(name)}

    def save_state(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rest: dict[str, Any]) -> None:
        """One file beside the weights."""
        trainer_state.write(folder, {"optimizer": optimizer.state_dict(), "adapter": trainer_state.adapter_of(model), "rest": rest})

    def load_state(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """See `Ranks.load_state`."""
        state = trainer_state.read(folder)
        if checkpoint.is_in_pieces(state):
            return checkpoint.load(folder, model, optimizer)
        trainer_state.restore(model, folder, state["adapter"])
        optimizer.load_state_dict(state["optimizer"])
        rest: dict[str, Any] = state["rest"]
        return rest


SINGLE_PROCESS: Ranks = SingleProcess()
"""Has no state; one serves all."""
