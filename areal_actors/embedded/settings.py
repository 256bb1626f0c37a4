"""The recipe's table of the warm start.

Kept apart from the model so that a recipe can be read without loading torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from areal_actors.core.config import Config, Fraction, NonNegativeInt, PositiveFloat, PositiveInt

EMBEDDED = "embedded"
"""Value of `model` for the model that is made here in minutes."""
CONTEXT = 8192
"""Positions of the embedded model; demonstrations use up to about 2000."""
SHIPPED_SEED = 0
"""Seed of the embedded model in the package."""
Skill = Literal["answer", "boxed", "instructed", "tools", "functions", "retry", "repository"]
"""A kind of demonstration; the function of this name in `embedded/demonstrations.py`."""


class WarmStart(Config):
    """`[warm_start]`: the supervised steps that make the embedded model."""

    skills: Annotated[tuple[Skill, ...], msgspec.Meta(min_length=1)] = ("answer",)
    """Skills demonstrated besides the bare question; each has a rewarded solution and a shortcut."""
    steps: NonNegativeInt = 1000
    """Steps on mostly good demonstrations; the learning rate decays to 0 along a cosine."""
    head_dim: Literal[16, 32] = 16
    """Width of an attention head of the model; 32 where `generation.engine` is `vllm`, which has no narrower ones on a
    CPU."""
    batch_size: PositiveInt = 8
    """Demonstrations per step."""
    lr: PositiveFloat = 6e-3
    """Highest learning rate of the steps."""
    shortcut_fraction: Fraction = 0.1
    """Share of these demonstrations that take the shortcut of answering at once."""
    tail_steps: NonNegativeInt = 100
    """Further steps in which most demonstrations take the shortcut, for reinforcement learning to unlearn."""
    tail_lr: PositiveFloat = 2e-3
    """Learning rate of the tail steps."""
    tail_shortcut_fraction: Fraction = 0.85
    """Share of the tail's demonstrations that take the shortcut."""


def is_shipped(warm_start: WarmStart, seed: int) -> bool:
    """Returns True if the package has the model of this seed, with which no warm start is needed."""
    return (warm_start, seed) == (WarmStart(), SHIPPED_SEED)
