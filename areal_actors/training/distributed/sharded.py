"""`Ranks` of a rank group: one rank of a sharded model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from areal_actors.core.errors import EngineError
from areal_actors.training.distributed import checkpoint, gradients
from areal_actors.training.distributed.layout import Layout
from areal_actors.training.distributed.mesh import Mesh, join_process_group, rank_device
from areal_actors.training.distributed.micro_batches import budget, distribute, filler, without_scores
from areal_actors.training.distributed.pipeline import Pipeline
from areal_actors.training.distributed.sharded_model import shard
from areal_actors.training.packing.tensors import MicroBatch
from areal_actors.training.ranks import Output, Ranks, trainable_parameters
from areal_actors.training.settings import TrainerSettings


class ShardedRanks(Ranks):
    """A `Ranks` of a sharded model; the process group is already initialized (see `mesh.join_process_group`)."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        """Create the mesh; every rank must do so at the same time.

        Raises:
            SetupError: the number of ranks differs from the layout.
        """
        self._mesh = Mesh(layout, device)
        self._pipeline = Pipeline(self._mesh)
        self.replica = self._mesh.replica
        self.replicas = layout.replicas
        self.first = dist.get_rank() == 0
        self.loss_scale = float(layout.replicas)

    @classmethod
    def meet(cls, settings: TrainerSettings, seconds: float | None = None) -> ShardedRanks:
        """Join the ranks of a recipe's `[trainer]`, started by `torchrun` or a `RankGroup`.

        Args:
            settings: the layout.
            seconds: timeout of all collective operations; `trainer.rank_timeout_seconds` if not given.

        Raises:
            SetupError: there are more ranks than devices, or their number differs from the recipe.
        """
        device = rank_device(settings.device)
        join_process_group(device, settings.rank_timeout_seconds if seconds is None else seconds)
        return cls(Layout.of(settings), device)

    def device(self, name: str) -> torch.device:  # noqa: ARG002 - used when the mesh was created
        """Returns this rank's device."""
        return self._mesh.device

    def parallelize(self, model: Any, dtype: torch.dtype) -> Any:
        """See `sharded_model.shard`."""
        return shard(model, self._mesh, dtype, self._pipeline)

    def budget(self, tokens: int, most: int) -> int:
        """See `micro_batches.budget`."""
        return budget(tokens, most, self.replicas, self._pipeline.stages)

    def distribute(self, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """See `Ranks.distribute`."""
        indices = distribute([batch.computed_tokens for batch in micro_batches], self.replicas)[self.replica]
        own = [filler(micro_batches[0]) if index is None else micro_batches[index] for index in indices]
        return own if self._pipeline.is_last else [without_scores(batch) for batch in own]

    def run_micro_batches(
        self,
        micro_batches: Sequence[MicroBatch],
        forward: Callable[[MicroBatch], Output],
        backward: Callable[[MicroBatch, Output], None],
    ) -> None:
        """See `Ranks.run_micro_batches`."""
        self._pipeline.run_micro_batches(micro_batches, forward, backward)

    def all_reduce(self, values: Tensor) -> Tensor:
        """See `Ranks.all_reduce`."""
        summed = values.detach().clone()
        dist.all_reduce(summed, group=self._mesh.across)
        return summed

    def sum_everywhere(self, counts: Tensor) -> Tensor:
        """See `Ranks.sum_everywhere`."""
        summed = counts.clone()
        dist.all_reduce(summed)
        return summed

    def merge_metrics(
        self, sums: dict[str, float], largest: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """See `Ranks.merge_metrics`."""
        every: list[Any] = [None] * self._mesh.across.size()
        dist.all_gather_object(every, (sums, largest), group=self._mesh.across)
        totals: dict[str, float] = {}
        most: dict[str, float] = {}
        for rank_metrics, peaks in every:
            totals |= {name: totals.get(name, 0.0) + value for name, value in rank_metrics.items()}
            most |= {name: max(most.get(name, -math.inf), value) for name, value in peaks.items()}
        return totals, most

    def gather(self, column: Tensor, indices: Tensor, tokens: int) -> Tensor:
        """See `Ranks.gather`."""
        return self.all_reduce(column.new_zeros(tokens).index_copy_(0, indices, column.detach()))

    def clip(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> float:
        """See `Ranks.clip`."""
        parameters = list(parameters)
        self._pipeline.reduce_shared_gradients({id(parameter) for parameter in parameters})
        return gradients.clip(parameters, max_norm, self._mesh.device, self._pipeline.stages, self._pipeline.shared)

    def count_trainable(self, model: torch.nn.Module) -> int:
        """See `Ranks.count_trainable`."""
        return self._pipeline.count_trainable(trainable_parameters(model))

    def full_state_dict(self, model: torch.nn.Module, wanted: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
        """See `Ranks.full_state_dict`; one whole tensor at a time is on the device."""
        _reshard(model)
        whole: dict[str, Tensor] = {}
        names: dict[int, str] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if wanted is not None and not wanted(name):
                continue
            if id(tensor) not in names:
                names[id(tensor)] = name
                gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                if self._mesh.leads_stage:
                    whole[name] = gathered.detach().cpu()
            elif self._mesh.leads_stage:
                whole[name] = whole[names[id(tensor)]]
        return self._pipeline.collect(whole) if self._mesh.leads_stage else whole

    def save_state(
        self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rest: dict[str, Any]
    ) -> None:
        """See `checkpoint.save`."""
        _reshard(model)
        checkpoint.save(folder, model, optimizer, rest)

    def load_state(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """See `checkpoint.load`."""
        _reshard(model)
        return checkpoint.load(folder, model, optimizer)


def _reshard(model: torch.nn.Module) -> None:
    """Reshard: a forward pass without a backward pass leaves the root's weights gathered."""
    if not isinstance(model, FSDPModule):
        raise EngineError(f"{type(model).__name__} is not sharded on these ranks; call `parallelize` first")
    model.reshard()
