"""Expert parallelism: the experts of a block are divided among the ranks that hold its tensor parts.

Every rank has all tokens and the router, computes the tokens of its own experts, and the outputs are summed over the
ranks: one all-reduce forward, one backward, and no exchange of tokens, whose order would depend on the routing. The
experts are one tensor per matrix, `[experts, out, in]` (transformers), which is split in its first dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

EXPERTS = "experts"
"""Name of the experts in a block's `mlp`."""


def expert_problem(config: Any, parts: int) -> str | None:
    """Returns why a model's experts cannot be divided among this number of ranks.

    None if they can, or there are none.
    """
    experts = getattr(config, "num_experts", 0)
    if experts % parts:
        return f"the model has {experts} experts, which trainer.tensor_parallel = {parts} does not divide; lower it"
    return None


class ExpertParallel(ParallelStyle):
    """A module of experts with the interface of transformers: `forward(hidden_states, top_k_index, top_k_weights)`."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            shards = distribute_tensor(parameter, device_mesh, [Shard(0)])
            module.register_parameter(name, nn.Parameter(shards, requires_grad=parameter.requires_grad))
        compute = type(module).forward

        def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
            own = OwnExperts(module, device_mesh.size())
            index = own.renumber(top_k_index, device_mesh.get_local_rank())
            weights = _share_input(top_k_weights, device_mesh).masked_fill(index == own.num_experts, 0.0)
            output = compute(own, _share_input(hidden_states, device_mesh), index, weights)
            return _sum_output(output, device_mesh)

        module.forward = forward
        return module


class OwnExperts:
    """The experts of this rank, in place of a module of all of them."""

    def __init__(self, module: Any, parts: int) -> None:
        self._module = module
        self.num_experts = module.num_experts // parts
        self._is_expert_parallel = True  # transformers then leaves out tokens of other ranks' experts
        for name, parameter in module.named_parameters(recurse=False):
            setattr(self, name, parameter.to_local() if isinstance(parameter, DTensor) else parameter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def renumber(self, index: Tensor, part: int) -> Tensor:
        """Numbers of the chosen experts among this rank's own.

        Those of others are `num_experts`, which transformers leaves out.
        """
        own = index - part * self.num_experts
        return torch.where((own >= 0) & (own < self.num_experts), own, self.num_experts)


def _share_input(value: Tensor, mesh: DeviceMesh) -> Tensor:
    """An input that every rank has: its gradient is the sum over the ranks."""
    local: Tensor = DTensor.from_local(value, mesh, [Replicate()], run_check=False).to_local(
        grad_placements=[Partial()]
    )
    return local


def _sum_output(value: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum of an output over the ranks."""
    total: Tensor = (
        DTensor.from_local(value, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()]).to_local()
    )
    return total
