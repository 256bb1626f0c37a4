"""Tensor parallelism of the Llama shape (Llama, Qwen2, Qwen3): attention heads and hidden units are shared out inside each block.

Matrices that make heads and hidden units are cut by column, those that take them up again by row, so that a block needs two
sums over the ranks (Shoeybi et al. 2019, Megatron-LM, https://arxiv.org/abs/1909.08053, section 3). Norms over single heads
(Qwen3) have one weight for all heads: each rank's gradient is that of its own heads, and DTensor adds them up. Embeddings and
head are not cut; see `sharded_model` for how they are shared out.

A low-rank addition is cut as the matrix that it is added to: B with the columns of one that is cut by column, A with the rows of
one that is cut by row. The other factor every rank has whole.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from areal_actors.engines.rank_group.stages import FAMILIES, own_blocks
from areal_actors.errors import SetupError

BY_COLUMN = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
BY_ROW = ("self_attn.o_proj", "mlp.down_proj")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
HEADS = 2
"""Dimension of the heads where a norm over single heads sees them: `[rows, width, heads, head_dim]`."""


def apply_tensor_parallel(base_model: Any, mesh: DeviceMesh) -> None:
    """Cut every block's matrices over the mesh; all ranks hold the same weights before.

    Raises:
        SetupError: the model is of another family.
    """
    if base_model.config.model_type not in FAMILIES:
        raise SetupError(
            f"trainer.tensor_parallel = {mesh.size()}: there is no plan for {base_model.config.model_type} models, "
            f"only for {', '.join(FAMILIES)}; write 1"
        )
    for block in own_blocks(base_model):
        parallelize_module(block, mesh, _plan(block))


class ReplicatedLinear(ParallelStyle):
    """A linear layer that every rank has whole, of an input that every rank has whole."""

    def __init__(self, *, use_local_output: bool) -> None:
        """Of an output that stays a DTensor, ranks may each give a part of the gradient, which is summed up later, with others."""
        self._local = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def take(_: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> Tensor:
            (given,) = inputs
            return given if isinstance(given, DTensor) else DTensor.from_local(given, mesh, [Replicate()], run_check=False)

        def give(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:  # noqa: ARG001 - torch hands it over
            return output.to_local() if self._local else output

        return distribute_module(module, device_mesh, None, take, give)  # type: ignore[arg-type]  # what both return is used


def _plan(block: Any) -> dict[str, ParallelStyle]:
    # One conversion of a block's input for all that take it: its gradient is then summed over the ranks once, not once for each.
    plan: dict[str, ParallelStyle] = {
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Replicate()}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
        ),
        "mlp": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
    }
    for name in BY_COLUMN:
        plan |= _linear(block, name, ColwiseParallel(), before=ReplicatedLinear(use_local_output=False), after=ColwiseParallel())
    for name in BY_ROW:
        plan |= _linear(
            block, name, RowwiseParallel(), before=RowwiseParallel(use_local_output=False), after=ReplicatedLinear(use_local_output=True)
        )
    attention = block.self_attn
    plan |= {
        name: SequenceParallel(sequence_dim=HEADS, use_local_output=True)
        for name in HEAD_NORMS
        if hasattr(attention, name.removeprefix("self_attn."))
    }
    return plan


def _linear(block: Any, name: str, style: ParallelStyle, *, before: ParallelStyle, after: ParallelStyle) -> dict[str, ParallelStyle]:
    """The plan of one layer and of the factors of its low-rank addition, if it has one: `before` of A, `after` of B."""
    layer = block.get_submodule(name)
    if not hasattr(layer, "lora_A"):
        return {name: style}
    factors = {f"{name}.lora_A.{adapter}": before for adapter in layer.lora_A}
    return {f"{name}.base_layer": style} | factors | {f"{name}.lora_B.{adapter}": after for adapter in layer.lora_B}
