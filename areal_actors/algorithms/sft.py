"""Supervised fine-tuning: make the demonstrated tokens likely. The embedded model is warmed up with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.config import PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Sft(Algorithm, tag="sft"):
    """`[algorithm] name = "sft"`: mean negative log-probability of all trained tokens; rewards play no part."""

    learns_from: ClassVar[Literal["episodes", "examples"]] = "examples"

    group_size: PositiveInt = 1
    """A demonstration is compared with nothing."""

    @property
    def recomputes_proximal(self) -> bool:
        """The tokens are all there is."""
        return False

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """See `Algorithm.problems`."""
        if self.group_size != 1:
            yield ("group_size",), f"found {self.group_size}, but a demonstration is compared with nothing; leave it out"

    def advantages(self, step: StepTokens) -> Advantages:
        """All 0: demonstrations are not compared."""
        return Advantages(tokens=step.behaviour.new_zeros(len(step.behaviour)))

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:  # noqa: ARG002 - the tokens are all there is
        """Negative log-probability."""
        return TokenLosses(losses=-logp)
