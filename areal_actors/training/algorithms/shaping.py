"""Reward shaping, and conversion of call advantages to token advantages with masking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from areal_actors.core.config import Config, PositiveFloat
from areal_actors.training.algorithms.base import Advantages, StepTokens
from areal_actors.training.algorithms.groups import last_by, whitened
from areal_actors.training.algorithms.kl import Kl

if TYPE_CHECKING:
    from torch import Tensor

NOTHING: Mapping[str, float] = {}


class Shaping(Config):
    """`[algorithm.shaping]`: reward → (reward + bias) × scale, clamped to ±clip, before groups are compared; truncation mask."""

    bias: float = 0.0
    """Added to the reward."""
    scale: float = 1.0
    """Multiplied after `bias` is added."""
    clip: PositiveFloat | None = None
    """Largest absolute value; unbounded if not set."""
    truncated: Literal["train", "mask"] = "train"
    """`mask`: episodes whose last call was truncated are not trained, but their rewards count in the baselines of the others
    (overlong filtering of arXiv:2503.14476, section 3.4). A truncated call before the last is trained."""

    def apply(self, rewards: Tensor) -> Tensor:
        """Returns shaped rewards: float64 `[calls]` → float64 `[calls]`."""
        shaped = (rewards + self.bias) * self.scale
        return shaped if self.clip is None else shaped.clamp(-self.clip, self.clip)

    def kept(self, step: StepTokens) -> Tensor | None:
        """Returns the mask of tokens that the loss uses: bool `[tokens]`; None means all."""
        return None if self.truncated == "train" else ~is_truncated(step)[step.samples[step.calls]]


def is_truncated(step: StepTokens) -> Tensor:
    """Returns True for samples whose last call ended at the length limit: bool `[samples]`."""
    return step.truncated[last_by(step.samples)]


def broadcast_to_tokens(
    step: StepTokens,
    advantages: Tensor,
    kl: Kl,
    shaping: Shaping,
    *,
    normalize_advantages: bool = False,
    metrics: Mapping[str, float] = NOTHING,
) -> Advantages:
    """Gives every token the advantage of its call, float64 `[calls]`, and finalizes as `finalize_advantages`."""
    return finalize_advantages(step, advantages[step.calls], kl, shaping, normalize_advantages=normalize_advantages, metrics=metrics)


def finalize_advantages(
    step: StepTokens,
    advantages: Tensor,
    kl: Kl,
    shaping: Shaping,
    *,
    normalize_advantages: bool = False,
    metrics: Mapping[str, float] = NOTHING,
) -> Advantages:
    """Returns token advantages, float64 `[tokens]`, in the precision of the step: normalized over all samples on request, then masked."""
    tokens = whitened(advantages, step.samples[step.calls]) if normalize_advantages else advantages
    kept = shaping.kept(step)
    masked = {} if kept is None or not len(kept) else {"truncated_masked_frac": float((~kept).double().mean())}
    return Advantages(tokens=tokens.to(step.behaviour.dtype), kept=kept, metrics={**kl.metrics(step), **masked, **metrics})


def check_group_size(group_size: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the problem of groups of one, for algorithms that compare the episodes of a group."""
    if group_size == 1:
        yield ("group_size",), "found 1, but an advantage compares an episode with the others of its group; write at least 2"
