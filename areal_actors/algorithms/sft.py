"""Supervised fine-tuning: make the demonstrated tokens likely. The embedded model is warmed up with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Algorithm, Batch, TokenLosses

if TYPE_CHECKING:
    from torch import Tensor


class Sft(Algorithm, tag="sft"):
    """Mean negative log-probability of all trained tokens; rewards play no part."""

    def advantages(self, rewards: Tensor, groups: Tensor) -> Tensor:  # noqa: ARG002 - demonstrations are not compared
        """All 0."""
        return rewards.new_zeros(len(rewards))

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:  # noqa: ARG002 - the tokens are all there is
        """Negative log-probability."""
        return TokenLosses(losses=-logp)
