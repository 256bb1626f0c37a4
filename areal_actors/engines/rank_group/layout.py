"""How many ranks do what: a grid of stages, replicas, sequence and tensor parts. No torch, so that a recipe can be checked with it."""

from __future__ import annotations

import msgspec

from areal_actors.engines.settings import TrainerSettings


class Layout(msgspec.Struct, frozen=True):
    """A grid of ranks; tensor parts are neighbours (they talk most), then sequence parts, then replicas, then stages (they talk least)."""

    replicas: int
    """Copies of the model, each with micro-batches of its own: data parallel."""
    sequence: int
    """Parts of each sequence: ranks that hold different positions."""
    tensor: int
    """Parts of each weight matrix: ranks that hold different attention heads and hidden units."""
    pipeline: int = 1
    """Stages of the model: ranks that hold different blocks."""

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.pipeline * self.replicas * self.sequence * self.tensor

    @property
    def parts(self) -> int:
        """Ranks that compute one block of one micro-batch together."""
        return self.sequence * self.tensor

    @classmethod
    def of(cls, settings: TrainerSettings) -> Layout:
        """The grid of a recipe that `layout_problem` finds nothing wrong with."""
        others = settings.pipeline_parallel * settings.sequence_parallel * settings.tensor_parallel
        return cls(settings.ranks // others, settings.sequence_parallel, settings.tensor_parallel, settings.pipeline_parallel)


def layout_problem(settings: TrainerSettings) -> tuple[str, str] | None:
    """Which setting of `[trainer]` gives no grid, and what was found and what to write; None if all is well."""
    ranks, tensor, sequence, pipeline = settings.ranks, settings.tensor_parallel, settings.sequence_parallel, settings.pipeline_parallel
    if ranks % (tensor * sequence * pipeline):
        product = f"tensor_parallel = {tensor} times sequence_parallel = {sequence}"
        product += f" times pipeline_parallel = {pipeline}" if pipeline > 1 else ""
        return "ranks", f"found {ranks}, which {product} does not divide; write a multiple of {tensor * sequence * pipeline}"
    if ranks > 1 and settings.optimizer.name == "adafactor":
        return "ranks", f"found {ranks}, but torch has no Adafactor of weights in pieces; write 1, or another trainer.optimizer.name"
    if settings.ranks_address and ranks == 1:
        return (
            "ranks_address",
            f'found "{settings.ranks_address}", but ranks = 1 needs nobody to report there; leave it out, or raise ranks',
        )
    return None


def stage_problem(layout: Layout, blocks: int) -> str | None:
    """Why so many blocks cannot be shared out over the stages; None if they can."""
    if layout.pipeline > blocks:
        return f"the model has {blocks} blocks, too few for trainer.pipeline_parallel = {layout.pipeline} stages; write at most {blocks}"
    return None


def head_problem(layout: Layout, heads: int, kv_heads: int) -> str | None:
    """Why attention with so many heads cannot be split like this; None if it can."""
    for what, count in (("attention heads", heads), ("key and value heads", kv_heads)):
        if count % layout.parts:
            return (
                f"the model has {count} {what}, which trainer.tensor_parallel = {layout.tensor} times "
                f"trainer.sequence_parallel = {layout.sequence} does not divide; lower one of them"
            )
    return None
