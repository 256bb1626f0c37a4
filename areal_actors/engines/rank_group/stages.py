"""A model between whose blocks it is cut: a rank keeps its stage's, in place of all others stands something that hands on.

Names stay those of the whole model, so that checkpoints and exports are the same in every layout.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from areal_actors.engines.models import HEAD
from areal_actors.engines.rank_group.layout import Layout, stage_problem
from areal_actors.errors import SetupError

FAMILIES = ("llama", "qwen2", "qwen3")
"""`model_type` of models that are known to be embeddings, blocks, a norm and a head, and nothing between them."""


class PassthroughBlock(nn.Module):
    """Stands for a module without weights here, which lies on another stage, and hands on what it is given."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if hasattr(module, "attention_type"):
            self.attention_type = module.attention_type  # a model asks every block for it

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        """The first argument."""
        return hidden_states


def own_blocks(base_model: Any) -> list[Any]:
    """The blocks that lie here."""
    return [block for block in base_model.layers if not isinstance(block, PassthroughBlock)]


def blocks_of(stage: int, stages: int, blocks: int) -> range:
    """Numbers of the blocks of a stage: neighbours, as many for each as can be, one more for the first ones."""
    each, more = divmod(blocks, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def idle_stage(model: Any, layout: Layout) -> int | None:
    """The first stage that has no block with anything to train, although others have."""
    blocks = model.base_model.layers
    busy = {number for number, block in enumerate(blocks) if any(parameter.requires_grad for parameter in block.parameters())}
    stages = range(layout.pipeline) if busy else ()
    return next((stage for stage in stages if not busy.intersection(blocks_of(stage, layout.pipeline, len(blocks)))), None)


def keep_stage(model: Any, layout: Layout, stage: int) -> bool:
    """Take from a model what belongs to other stages; whether its embeddings are its head, and lie on the first and the last stage.

    Raises:
        SetupError: the model cannot be cut up like this.
    """
    base = model.base_model
    if base.config.model_type not in FAMILIES:
        raise SetupError(
            f"trainer.pipeline_parallel = {layout.pipeline}: it is not known how {base.config.model_type} models are made up, "
            f"only how {', '.join(FAMILIES)} models are; write 1"
        )
    if problem := stage_problem(layout, len(base.layers)):
        raise SetupError(problem)
    if (idle := idle_stage(model, layout)) is not None:
        raise SetupError(
            f"trainer.lora.targets: stage {idle} of trainer.pipeline_parallel = {layout.pipeline} has no such layer, and so nothing to "
            "train; name layers that every block has"
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
