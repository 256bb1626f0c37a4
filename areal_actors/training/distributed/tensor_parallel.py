"""Tensor parallelism of the Llama architecture (Llama, Qwen2, Qwen3).

Attention heads and hidden units of each block are split.
In a mixture of experts (Qwen3-MoE) the experts of each block are divided among the ranks instead of its hidden units
(`expert_parallel`).

Matrices that produce heads and hidden units are split by column, those that consume them by row, so that a block needs
two all-reduces (Shoeybi et al. 2019, Megatron-LM, https://arxiv.org/abs/1909.08053, section 3). Norms over single heads
(Qwen3) have one weight for all heads: each rank's gradient is that of its own heads, and DTensor sums them. Embeddings
and head are not split; `sharded_model` shards them.

LoRA factors are split like their matrix: B by column if it is split by column, A by row if it is split by row. The
other factor is replicated.
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

from areal_actors.core.errors import SetupError
from areal_actors.training.distributed.expert_parallel import EXPERTS, ExpertParallel, expert_problem
from areal_actors.training.distributed.stages import FAMILIES, own_blocks

BY_COLUMN = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
BY_ROW = ("self_attn.o_proj", "mlp.down_proj")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
HEADS = 2
"""Dimension of the heads in the input of a norm over single heads: `[rows, width, heads, head_dim]`."""


def apply_tensor_parallel(base_model: Any, mesh: DeviceMesh) -> None:
    """Split every block's matrices over the mesh; all ranks must have the same weights before.

    Raises:
        SetupError: the model family is not supported, or the number of parts does not divide its experts.
    """
    if base_model.config.model_type not in FAMILIES:
        raise SetupError(
            f"trainer.tensor_parallel = {mesh.size()} does not support model type {base_model.config.model_type}, "
            f"only {', '.join(FAMILIES)}; write 1"
        )
    if problem := expert_problem(base_model.config, mesh.size()):
        raise SetupError(problem)
    for block in own_blocks(base_model):
        parallelize_module(block, mesh, _plan(block))


class ReplicatedLinear(ParallelStyle):
    """A replicated linear layer with a replicated input."""

    def __init__(self, *, use_local_output: bool) -> None:
        """`use_local_output=False` keeps the output a DTensor: its partial gradients are summed over ranks later."""
        self._local = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def take(_: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> Tensor:
            (given,) = inputs
            return (
                given if isinstance(given, DTensor) else DTensor.from_local(given, mesh, [Replicate()], run_check=False)
            )

        def give(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:  # noqa: ARG001 - torch passes it
            return output.to_local() if self._local else output

        return distribute_module(module, device_mesh, None, take, give)  # type: ignore[arg-type]  # the return values of both are used


def _plan(block: Any) -> dict[str, ParallelStyle]:
    # One conversion of a block's input for all its consumers: its gradient is then summed over the ranks once, not once
    # for each.
    plan: dict[str, ParallelStyle] = {
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Replicate()},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
    }
    mixture = hasattr(block.mlp, EXPERTS)
    if mixture:
        plan[f"mlp.{EXPERTS}"] = ExpertParallel()
    else:
        plan["mlp"] = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    for name in _matrices(BY_COLUMN, mixture=mixture):
        plan |= _linear(
            block, name, ColwiseParallel(), before=ReplicatedLinear(use_local_output=False), after=ColwiseParallel()
        )
    for name in _matrices(BY_ROW, mixture=mixture):
        plan |= _linear(
            block,
            name,
            RowwiseParallel(),
            before=RowwiseParallel(use_local_output=False),
            after=ReplicatedLinear(use_local_output=True),
        )
    attention = block.self_attn
    plan |= {
        name: SequenceParallel(sequence_dim=HEADS, use_local_output=True)
        for name in HEAD_NORMS
        if hasattr(attention, name.removeprefix("self_attn."))
    }
    return plan


def _matrices(names: tuple[str, ...], *, mixture: bool) -> list[str]:
    return [name for name in names if not (mixture and name.startswith("mlp."))]


def _linear(
    block: Any, name: str, style: ParallelStyle, *, before: ParallelStyle, after: ParallelStyle
) -> dict[str, ParallelStyle]:
    """The plan of one layer and of its LoRA factors, if any: `before` for A, `after` for B."""
    layer = block.get_submodule(name)
    if not hasattr(layer, "lora_A"):
        return {name: style}
    factors = {f"{name}.lora_A.{adapter}": before for adapter in layer.lora_A}
    return {f"{name}.base_layer": style} | factors | {f"{name}.lora_B.{adapter}": after for adapter in layer.lora_B}
