"""Pipeline stages of a model: a rank keeps the blocks of its stage, and replaces all others by passthrough modules.

Parameter names stay those of the whole model, so that checkpoints and exports are the same in every layout.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from areal_actors.core.errors import SetupError
from areal_actors.training.distributed.layout import Layout, stage_problem
from areal_actors.training.models import HEAD

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "smollm3")
"""`model_type` of models known to consist of embeddings, blocks, a norm and a head only."""


class PassthroughBlock(nn.Module):
    """Replaces a module of another stage; returns its input."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if hasattr(module, "attention_type"):
            self.attention_type = module.attention_type  # the model reads it from every block

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        """Returns the first argument."""
        return hidden_states


def own_blocks(base_model: Any) -> list[Any]:
    """Returns the blocks of this stage."""
    return [block for block in base_model.layers if not isinstance(block, PassthroughBlock)]


def blocks_of(stage: int, stages: int, blocks: int) -> range:
    """Indices of the blocks of a stage: contiguous and evenly split, with one more for the first stages."""
    each, more = divmod(blocks, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def idle_stage(model: Any, layout: Layout) -> int | None:
    """First stage without a trained parameter in its blocks although others have some; None if there is none."""
    blocks = model.base_model.layers
    busy = {
        number
        for number, block in enumerate(blocks)
        if any(parameter.requires_grad for parameter in block.parameters())
    }
    stages = range(layout.pipeline) if busy else ()
    return next(
        (stage for stage in stages if not busy.intersection(blocks_of(stage, layout.pipeline, len(blocks)))), None
    )


def keep_stage(model: Any, layout: Layout, stage: int) -> bool:
    """Remove the modules of other stages from a model; returns True if its embeddings are tied to its head.

    Raises:
        SetupError: the model does not support the layout.
    """
    base = model.base_model
    if base.config.model_type not in FAMILIES:
        raise SetupError(
            f"trainer.pipeline_parallel = {layout.pipeline} does not support model type {base.config.model_type}, "
            f"only {', '.join(FAMILIES)}; write 1"
        )
    if problem := stage_problem(layout, len(base.layers)):
        raise SetupError(problem)
    if (idle := idle_stage(model, layout)) is not None:
        raise SetupError(
            f"trainer.lora.targets: stage {idle} of trainer.pipeline_parallel = {layout.pipeline} has no such layer,"
            " and so no trained parameter; name layers that every block has"
        )
    scalar = model.get_output_embeddings() is None
    tied = not scalar and model.get_input_embeddings().weight is model.get_output_embeddings().weight
    begins, ends = stage == 0, stage == layout.pipeline - 1
    mine = blocks_of(stage, layout.pipeline, len(base.layers))
    for number, block in enumerate(base.layers):
        if number not in mine:
            base.layers[number] = PassthroughBlock(block)
    if not begins and not (tied and ends):
        model.set_input_embeddings(PassthroughBlock(model.get_input_embeddings()))
    if not ends:
        base.norm = PassthroughBlock(base.norm)
        if scalar:
            model.set_submodule(HEAD, PassthroughBlock(model.get_submodule(HEAD)))
        else:
            model.set_output_embeddings(PassthroughBlock(model.get_output_embeddings()))
    return tied
