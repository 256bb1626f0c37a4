"""Compilation of a model's blocks by `torch.compile` (`trainer.compile`).

Blocks are compiled one by one, not the model: they have the same code, so that one compilation serves all of them, and
whatever runs around a block (hooks of sharded weights, recomputation, the loss) stays as it is. The number of tokens is
a variable of the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from areal_actors.core.errors import SetupError
from areal_actors.training.distributed.stages import own_blocks

REMEDY = "write trainer.compile = false"


def compile_on_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is compiled when it is called first, for any sizes."""
    return torch.compile(function, dynamic=True)


def compile_blocks(base_model: Any) -> None:
    """Compile the forward and backward pass of each block, in place; parameters and their names stay the same.

    Raises:
        SetupError: the model has no list of blocks.
    """
    text_model = getattr(base_model, "language_model", base_model)
    if not hasattr(text_model, "layers"):
        raise SetupError(
            f"trainer.compile = true: {type(base_model).__name__} has no list of blocks to compile; {REMEDY}"
        )
    for block in own_blocks(text_model):
        block.forward = compile_on_first_call(block.forward)


def require_compiler(device: torch.device) -> None:
    """Compile and run a small function.

    Raises:
        SetupError: this fails, with the cause.
    """

    def scale_column(column: Tensor) -> Tensor:
        return column.sin() * 2

    try:
        column = torch.ones(3, device=device, requires_grad=True)
        compile_on_first_call(scale_column)(column).sum().backward()
    except Exception as error:
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise SetupError(
            f"trainer.compile = true: torch.compile does not work here on {device.type}: {cause[0]}; {REMEDY}"
        ) from error
