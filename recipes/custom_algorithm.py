"""An algorithm of your own.

GRPO that learns from the better answers only, as RAFT++ does (arXiv:2504.11343, section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.training.algorithms import Grpo

if TYPE_CHECKING:
    from torch import Tensor


class PositiveOnly(Grpo):
    """Answers whose advantage is at most the threshold are not learned from."""

    threshold: float = 0.0
    """Smallest advantage that counts."""

    def compare(self, rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
        """Returns advantages: float64 `[calls]`, int64 `[calls]`, int64 `[samples]` → float64 `[calls]`."""
        advantages = super().compare(rewards, samples, groups)
        return advantages * (advantages > self.threshold)
