"""Gradient clipping by the global norm of tensors that are sharded on several meshes."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

SAFETY = 1e-6
"""Added to the norm before dividing by it, as `torch.nn.utils.clip_grad_norm_` does."""


@torch.no_grad()
def clip(
    parameters: Iterable[torch.nn.Parameter], max_norm: float, device: torch.device, stages: int, shared: Container[int]
) -> float:
    """Scale gradients to a global norm of at most `max_norm`; returns the global norm before, the same on every rank.

    `torch.nn.utils.clip_grad_norm_` stacks norms, which fails for different meshes. Here each rank adds up the squares
    of its own shards in float64, each divided by the number of ranks that hold a copy of it.

    Args:
        parameters: parameters of this rank.
        max_norm: maximum norm over the gradients of all ranks.
        device: device of the reduction.
        stages: number of pipeline stages.
        shared: `id` of parameters that two stages share.
    """
    trained = [
        (parameter.grad, 2 if id(parameter) in shared else 1) for parameter in parameters if parameter.grad is not None
    ]
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for gradient, times in trained:
        squares += _local(gradient).double().square().sum() / (
            _copies(gradient, dist.get_world_size() // stages) * times
        )
    dist.all_reduce(squares)
    norm = math.sqrt(float(squares))
    if math.isfinite(norm) and norm + SAFETY > max_norm:
        torch._foreach_mul_([_local(gradient) for gradient, _ in trained], max_norm / (norm + SAFETY))
    return norm


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(tensor: Tensor, ranks: int) -> int:
    """Number of ranks, of `ranks` over which the tensor is distributed, that hold the same shard."""
    if not isinstance(tensor, DTensor):
        return ranks
    pieces = 1
    for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
        if not isinstance(placement, Replicate):
            pieces *= size
    return ranks // pieces
