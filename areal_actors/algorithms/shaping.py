"""From R of a call to the advantage of its tokens: shaping before, spreading and masking after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from areal_actors.algorithms.base import Advantages, StepTokens
from areal_actors.algorithms.groups import last_by, whitened
from areal_actors.algorithms.kl import Kl
from areal_actors.config import Config, PositiveFloat

if TYPE_CHECKING:
    from torch import Tensor

NOTHING: Mapping[str, float] = {}


class Shaping(Config):
    """`[algorithm.shaping]`: reward → (reward + bias) × scale, held within ±clip, before anything is compared; what a cut answer trains."""

    bias: float = 0.0
    """Added first."""
    scale: float = 1.0
    """Multiplied with then."""
    clip: PositiveFloat | None = None
    """Largest absolute value; none if not set."""
    truncated: Literal["train", "mask"] = "train"
    """`mask`: no token of an episode whose last call was cut by length is trained, but its reward counts in the baseline of the
    others (overlong filtering of arXiv:2503.14476, section 3.4). A call that was cut while its episode went on is trained."""

    def of(self, rewards: Tensor) -> Tensor:
        """Shaped rewards: float64 `[calls]` → float64 `[calls]`."""
        shaped = (rewards + self.bias) * self.scale
        return shaped if self.clip is None else shaped.clamp(-self.clip, self.clip)

    def kept(self, step: StepTokens) -> Tensor | None:
        """Tokens that the loss sees: bool `[tokens]`; None is all."""
        return None if self.truncated == "train" else ~was_cut(step)[step.samples[step.calls]]


def was_cut(step: StepTokens) -> Tensor:
    """Samples whose last call the engine stopped by length: bool `[samples]`."""
    return step.truncated[last_by(step.samples)]


def spread(
    step: StepTokens,
    advantages: Tensor,
    kl: Kl,
    shaping: Shaping,
    *,
    whiten: bool = False,
    metrics: Mapping[str, float] = NOTHING,
) -> Advantages:
    """Every token has the advantage of its call: float64 `[calls]`; the rest as in `over_tokens`."""
    return over_tokens(step, advantages[step.calls], kl, shaping, whiten=whiten, metrics=metrics)


def over_tokens(
    step: StepTokens,
    advantages: Tensor,
    kl: Kl,
    shaping: Shaping,
    *,
    whiten: bool = False,
    metrics: Mapping[str, float] = NOTHING,
) -> Advantages:
    """Advantages of tokens, float64 `[tokens]`, in the precision of the step; normalised over all samples if `whiten`, then masked."""
    tokens = whitened(advantages, step.samples[step.calls]) if whiten else advantages
    kept = shaping.kept(step)
    masked = {} if kept is None or not len(kept) else {"truncated_masked_share": float((~kept).double().mean())}
    return Advantages(tokens=tokens.to(step.behaviour.dtype), kept=kept, metrics={**kl.metrics(step), **masked, **metrics})


def lonely(group_size: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """The problem of groups of one, for algorithms that compare the members of a group."""
    if group_size == 1:
        yield ("group_size",), "found 1, but an episode is worth what it is above the others of its group; write at least 2"
