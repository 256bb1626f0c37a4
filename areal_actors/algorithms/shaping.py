"""From the reward of a row to the advantage of its tokens: shaping before, spreading after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Advantages, StepTokens
from areal_actors.algorithms.groups import whitened
from areal_actors.algorithms.kl import Kl
from areal_actors.config import Config, PositiveFloat

if TYPE_CHECKING:
    from torch import Tensor

NOTHING: Mapping[str, float] = {}


class Shaping(Config):
    """`[algorithm.shaping]`: reward → (reward + bias) × scale, held within ±clip; before anything is compared."""

    bias: float = 0.0
    """Added first."""
    scale: float = 1.0
    """Multiplied with then."""
    clip: PositiveFloat | None = None
    """Largest absolute value; none if not set."""

    def of(self, rewards: Tensor) -> Tensor:
        """Shaped rewards: float64 `[rows]` → float64 `[rows]`."""
        shaped = (rewards + self.bias) * self.scale
        return shaped if self.clip is None else shaped.clamp(-self.clip, self.clip)


def spread(step: StepTokens, advantages: Tensor, kl: Kl, *, whiten: bool = False, metrics: Mapping[str, float] = NOTHING) -> Advantages:
    """Every token is worth what its row is: float64 `[rows]`; the rest as in `over_tokens`."""
    return over_tokens(step, advantages[step.rows], kl, whiten=whiten, metrics=metrics)


def over_tokens(
    step: StepTokens, advantages: Tensor, kl: Kl, *, whiten: bool = False, metrics: Mapping[str, float] = NOTHING
) -> Advantages:
    """Advantages of tokens, float64 `[tokens]`, in the precision of the step; normalised over all of them if `whiten`."""
    tokens = whitened(advantages) if whiten else advantages
    return Advantages(tokens=tokens.to(step.behaviour.dtype), metrics={**kl.metrics(step), **metrics})


def lonely(group_size: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """The problem of groups of one, for algorithms that compare the members of a group."""
    if group_size == 1:
        yield ("group_size",), "found 1, but an episode is worth what it is above the others of its group; write at least 2"
