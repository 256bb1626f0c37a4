"""The norm of a gradient whose tensors lie in pieces on several meshes, and clipping by it."""

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
    parameters: Iterable[torch.nn.Parameter], max_norm: float, device: torch.device, *, stages: int = 1, shared: Container[int] = ()
) -> float:
    """Scale gradients down to a global norm of at most `max_norm`; the global norm before that, the same on every rank.

    `torch.nn.utils.clip_grad_norm_` cannot: it stacks norms, and those of different meshes do not stack. Here each rank adds
    up the squares of its own pieces, each divided by how many ranks hold a copy of it, in float64.

    Args:
        parameters: this rank's.
        max_norm: of all gradients of all ranks.
        device: where the ranks sum up.
        stages: how many groups of ranks hold different parameters.
        shared: `id` of parameters that two stages hold all the same.
    """
    trained = [(parameter.grad, 2 if id(parameter) in shared else 1) for parameter in parameters if parameter.grad is not None]
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for gradient, times in trained:
        squares += _local(gradient).double().square().sum() / (_copies(gradient, dist.get_world_size() // stages) * times)
    dist.all_reduce(squares)
    norm = math.sqrt(float(squares))
    if math.isfinite(norm) and norm + SAFETY > max_norm:
        torch._foreach_mul_([_local(gradient) for gradient, _ in trained], max_norm / (norm + SAFETY))
    return norm


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(tensor: Tensor, ranks: int) -> int:
    """How many of so many ranks that share the tensor out hold the same piece."""
    if not isinstance(tensor, DTensor):
        return ranks
    pieces = 1
    for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
        if not isinstance(placement, Replicate):
            pieces *= size
    return ranks // pieces
