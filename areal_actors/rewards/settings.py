"""The recipe's table of a reward model.

Kept apart from the model so that a recipe can be read without loading torch.
"""

from __future__ import annotations

from typing import Literal

from areal_actors.core.config import Config, NonNegativeFloat, PositiveInt


class RewardModelSettings(Config):
    """`[task.reward_options]` of a reward that is a trained model."""

    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: PositiveInt = 8192
    """Padded tokens per forward pass; a longer conversation gets its own."""
    window_seconds: NonNegativeFloat = 0.005
    """Seconds that the first conversation of a batch waits for others."""
    threads: PositiveInt = 1
