"""Supervised fine-tuning: maximize the likelihood of the demonstrated tokens.

Also used for the warm start of the embedded model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from areal_actors.core.config import PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, Problem, StepTokens, TokenLosses

if TYPE_CHECKING:
    from torch import Tensor


class Sft(Algorithm, tag="sft"):
    """`[algorithm] name = "sft"`: mean negative log-probability of all trained tokens; rewards are not used."""

    learns_from: ClassVar[Literal["episodes", "examples"]] = "examples"

    group_size: PositiveInt = 1
    """Must be 1: demonstrations are not compared."""

    def problems(self) -> Iterator[Problem]:
        """Yields the problems of the settings; see `Algorithm.problems`."""
        if self.group_size != 1:
            yield ("group_size",), f"found {self.group_size}, but demonstrations have no groups; leave it out"

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns zeros: demonstrations are not compared."""
        return Advantages(tokens=step.behaviour.new_zeros(len(step.behaviour)))

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:  # noqa: ARG002 - only the tokens are used
        """Returns the negative log-probability of each token."""
        return TokenLosses(losses=-logp)
