"""A Hugging Face model distributed over the ranks: pipeline stages, tensor and sequence parts, and sharded weights.

Every rank of a replica's last stage has the hidden states of all positions after a forward pass, and so computes the
same losses. Weights are sharded by `fully_shard` (FSDP2): a block's over the ranks of its tensor part, embeddings, last
norm and head over all ranks of their stage. Gradients are averaged over the ranks of a sharding; scaling the loss by
the number of replicas gives the sum over replicas in any layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from areal_actors.core.errors import SetupError
from areal_actors.training.distributed.layout import head_problem
from areal_actors.training.distributed.mesh import Mesh
from areal_actors.training.distributed.pipeline import Pipeline
from areal_actors.training.distributed.sequence_parallel import Forward, shard_positions, use_all_to_all
from areal_actors.training.distributed.stages import keep_stage, own_blocks
from areal_actors.training.distributed.tensor_parallel import apply_tensor_parallel


def shard(model: Any, mesh: Mesh, dtype: torch.dtype, pipeline: Pipeline) -> Any:
    """Distribute a model in place. The first rank's weights are used; on others the model may be on the meta device.

    Args:
        model: a model with `base_model.layers` and float32 weights.
        mesh: mesh of this rank.
        dtype: dtype of computations; weights, gradients and reductions stay float32.
        pipeline: pipeline of this rank.

    Raises:
        SetupError: the model does not support the layout.
    """
    base, layout = model.base_model, mesh.layout
    if not hasattr(base, "layers"):
        raise SetupError(
            f"trainer.ranks = {layout.ranks}: {type(model).__name__} has no list of blocks to shard; write 1"
        )
    if layout.parts > 1 and (
        problem := head_problem(layout, base.config.num_attention_heads, base.config.num_key_value_heads)
    ):
        raise SetupError(problem)
    weights: dict[str, Any] = (
        {name: tensor.detach() for name, tensor in model.state_dict().items()} if dist.get_rank() == 0 else {}
    )
    buffers = _non_persistent_buffers(model)
    trained = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    model.to("meta")
    model.tie_weights()
    tied = layout.pipeline > 1 and keep_stage(model, layout, mesh.stage)
    if layout.tensor > 1:
        apply_tensor_parallel(base, mesh.tensor)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)  # torch makes replicated parameters of tensor parts trainable
    if layout.sequence > 1:
        use_all_to_all(base, mesh.sequence_group)
    policy = MixedPrecisionPolicy(param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32)
    for block in own_blocks(base):
        fully_shard(block, mesh=mesh.blocks, mp_policy=policy)
    fully_shard(model, mesh=mesh.all, mp_policy=policy)
    _broadcast_weights(model, weights, buffers, mesh)
    forward = base.forward if layout.pipeline == 1 else _stage_forward(base, pipeline, dtype)
    if layout.sequence > 1:
        forward = shard_positions(forward, mesh.sequence_group, joined=pipeline.is_last)
    _gather_before_forward(model, base, forward)
    if layout.pipeline > 1:
        base.agree = pipeline.agree  # used by `HiddenStates`
        if tied and (pipeline.is_first or pipeline.is_last):
            pipeline.share(model.get_input_embeddings().weight)
    model.trained_names = trained
    return model


def _non_persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Non-persistent buffers, such as rotary frequencies.

    Computed from the configuration and lost on the meta device.
    """
    kept = set(model.state_dict())
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers() if name not in kept}


def _broadcast_weights(model: Any, weights: dict[str, Any], buffers: dict[str, Tensor], mesh: Mesh) -> None:
    """Send every rank its shards of the first rank's weights, one tensor at a time, and all buffers."""
    model.to_empty(device=mesh.device)
    # Each pipeline stage lacks names of the others.
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=mesh.layout.pipeline == 1)
    set_model_state_dict(model, weights, options=options)
    for name, buffer in buffers.items():
        owner, _, own = name.rpartition(".")
        value = torch.empty_like(buffer, device=mesh.device) if buffer.is_meta else buffer.to(mesh.device)
        dist.broadcast(value, src=0)
        setattr(model.get_submodule(owner), own, value)


def _stage_forward(base: Any, pipeline: Pipeline, dtype: torch.dtype) -> Forward:
    """Wraps the base model's forward for the blocks of this rank's stage."""
    plain, width = base.forward, base.config.hidden_size

    def forward(input_ids: Tensor, **named: Any) -> Any:
        given = {name: value for name, value in named.items() if value is not None}
        return pipeline.run(plain, input_ids, width, dtype, given)

    return forward


def _gather_before_forward(model: Any, base: Any, forward: Forward) -> None:
    """Gather the weights outside of blocks, head included, before each forward of the base model.

    The trainer calls base model and head separately, but FSDP gathers the root's weights only in the forward of the
    whole model.
    """
    model.gathered_forward = forward
    register_fsdp_forward_method(model, "gathered_forward")

    def fresh(*arguments: Any, **named: Any) -> Any:
        model.reshard()  # a forward pass without a backward pass leaves weights gathered, which may be outdated
        return model.gathered_forward(*arguments, **named)

    base.forward = fresh
    # A separate class, so that code for the original class (the fused forward) does not match it; its module stays that
    # of transformers, which converts tensors between model and checkpoint for its own models only.
    base.__class__ = type(f"Sharded{type(base).__name__}", (type(base),), {"__module__": type(base).__module__})
    model.__class__ = type(
        type(model).__name__, (type(model),), {"__module__": type(model).__module__, "named_parameters": _named_pieces}
    )


def _named_pieces(model: Any, *arguments: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """`named_parameters` of the shards, even if a forward pass left weights gathered."""
    model.reshard()
    return nn.Module.named_parameters(model, *arguments, **named)
