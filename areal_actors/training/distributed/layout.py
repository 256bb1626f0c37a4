"""Layout of ranks: a grid of pipeline stages, replicas, sequence and tensor parts.

Without torch, for checks of recipes.
"""

from __future__ import annotations

import msgspec

from areal_actors.training.settings import TrainerSettings


class Layout(msgspec.Struct, frozen=True):
    """A grid of ranks, innermost dimension first.

    Tensor parts (most communication), sequence parts, replicas, stages (least).
    """

    replicas: int
    """Data parallel: copies of the model with different micro-batches."""
    sequence: int
    """Sequence parallel: ranks with different positions of each sequence."""
    tensor: int
    """Tensor parallel: ranks with different attention heads and hidden units."""
    pipeline: int = 1
    """Pipeline parallel: ranks with different blocks."""

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return self.pipeline * self.replicas * self.sequence * self.tensor

    @property
    def parts(self) -> int:
        """Number of ranks that compute one block of one micro-batch together."""
        return self.sequence * self.tensor

    @classmethod
    def of(cls, settings: TrainerSettings) -> Layout:
        """Layout of settings that `layout_problem` accepts."""
        per_replica = settings.pipeline_parallel * settings.sequence_parallel * settings.tensor_parallel
        return cls(
            settings.ranks // per_replica,
            settings.sequence_parallel,
            settings.tensor_parallel,
            settings.pipeline_parallel,
        )


def layout_problem(settings: TrainerSettings) -> tuple[str, str] | None:
    """Returns the invalid setting of `[trainer]` and a description of the problem with its remedy.

    None if the layout is valid.
    """
    ranks, tensor, sequence, pipeline = (
        settings.ranks,
        settings.tensor_parallel,
        settings.sequence_parallel,
        settings.pipeline_parallel,
    )
    if ranks % (tensor * sequence * pipeline):
        product = f"tensor_parallel = {tensor} times sequence_parallel = {sequence}"
        product += f" times pipeline_parallel = {pipeline}" if pipeline > 1 else ""
        return (
            "ranks",
            f"found {ranks}, which {product} does not divide; write a multiple of {tensor * sequence * pipeline}",
        )
    if ranks > 1 and settings.optimizer.name == "adafactor":
        return (
            "ranks",
            (
                f"found {ranks}, but torch's Adafactor does not support sharded weights; write 1, or another"
                " trainer.optimizer.name"
            ),
        )
    if ranks > 1 and settings.optimizer.name == "muon":
        fault = f"found {ranks}, but Muon needs whole matrices, which ranks divide"
        return "ranks", f"{fault}; write 1, or another trainer.optimizer.name"
    if settings.compile and tensor * sequence > 1:
        problem = (
            f"found true, but blocks split by tensor_parallel = {tensor} times sequence_parallel = {sequence} are not"
            " compiled"
        )
        return "compile", f"{problem}; leave it out, or write 1 for both"
    if settings.ranks_address and ranks == 1:
        return (
            "ranks_address",
            f'found "{settings.ranks_address}", but ranks = 1 starts no rank processes; leave it out, or raise ranks',
        )
    return None


def stage_problem(layout: Layout, blocks: int) -> str | None:
    """Returns why the blocks cannot be distributed over the stages; None if they can."""
    if layout.pipeline > blocks:
        return (
            f"the model has {blocks} blocks, too few for trainer.pipeline_parallel = {layout.pipeline} stages; write at"
            f" most {blocks}"
        )
    return None


def head_problem(layout: Layout, heads: int, kv_heads: int) -> str | None:
    """Returns why the attention heads cannot be split in this layout; None if they can."""
    for what, count in (("attention heads", heads), ("key and value heads", kv_heads)):
        if count % layout.parts:
            return (
                f"the model has {count} {what}, which trainer.tensor_parallel = {layout.tensor} times "
                f"trainer.sequence_parallel = {layout.sequence} does not divide; lower one of them"
            )
    return None
