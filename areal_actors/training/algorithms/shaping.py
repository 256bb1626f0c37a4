"""`[algorithm.shaping]`: reward shaping, and the mask of truncated episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from areal_actors.core.config import Config, PositiveFloat
from areal_actors.training.algorithms.base import StepTokens
from areal_actors.training.algorithms.groups import last_by

if TYPE_CHECKING:
    from torch import Tensor


class Shaping(Config):
    """`[algorithm.shaping]`.

    Reward → (reward + bias) × scale, clamped to ±clip, before groups are compared; truncation mask.
    """

    bias: float = 0.0
    """Added to the reward."""
    scale: float = 1.0
    """Multiplied after `bias` is added."""
    clip: PositiveFloat | None = None
    """Largest absolute value; unbounded if not set."""
    truncated: Literal["train", "mask"] = "train"
    """`mask`: episodes whose last call was truncated are not trained, but their rewards count in the baselines of the
    others (overlong filtering of arXiv:2503.14476, section 3.4). A truncated call before the last is trained."""

    def apply(self, rewards: Tensor) -> Tensor:
        """Returns shaped rewards: float64 `[calls]` → float64 `[calls]`."""
        shaped = (rewards + self.bias) * self.scale
        return shaped if self.clip is None else shaped.clamp(-self.clip, self.clip)

    def loss_mask(self, step: StepTokens) -> Tensor | None:
        """Returns the mask of tokens that the loss uses: bool `[tokens]`; None means all."""
        return None if self.truncated == "train" else ~is_truncated(step)[step.samples[step.calls]]


def is_truncated(step: StepTokens) -> Tensor:
    """Returns True for samples whose last call ended at the length limit: bool `[samples]`."""
    return step.truncated[last_by(step.samples)]
