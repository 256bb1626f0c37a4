"""Decoupled clip and dynamic sampling policy optimization (DAPO; arXiv:2503.14476).

GRPO's advantage, a clip that is wider upwards (section 3.1, equation 10), the mean over all tokens (section 3.3, equation
12), and a penalty for overlong answers (section 3.4, equation 13). Dynamic sampling (section 3.2), which leaves out groups
whose rewards are all equal, is the batcher's: `[batcher] filter = "signal"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.algorithms.correction import Correction
from areal_actors.algorithms.groups import group_normalized, sum_by
from areal_actors.algorithms.kl import Kl
from areal_actors.algorithms.pieces import AboveOne, Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, lonely, spread, was_cut
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.config import Config, NonNegativeFloat, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Overlong(Config):
    """`[algorithm.overlong]`: the soft punishment of long answers (equation 13), before rewards are shaped."""

    longest: PositiveInt
    """Sampled tokens that an episode may have: the paper's L_max; `sampling.max_tokens` where an episode is one answer."""
    buffer: PositiveInt
    """The last of them, over which the penalty grows from 0 to `factor`: the paper's L_cache."""
    factor: NonNegativeFloat = 1.0
    """The whole penalty."""

    def penalties(self, step: StepTokens) -> Tensor:
        """What each sample loses: float64 `[samples]`, from 0 to `factor`; all of it where its last call was cut by length."""
        over = sum_by(step.sampled.to(step.rewards.dtype), step.samples) - (self.longest - self.buffer)
        return self.factor * (over / self.buffer).clamp(0.0, 1.0).masked_fill(was_cut(step), 1.0)


class Dapo(Algorithm, tag="dapo"):
    """`[algorithm] name = "dapo"`.

    Advantage: reward less overlong penalty, above the group's mean, over the group's standard deviation
    Surrogate: clipped token ratio, wider upwards, × behaviour weight
    Filter: groups without signal (`[batcher] filter = "signal"`)
    AReaL: `eps_clip_higher`, `overlong_reward_penalty` (not capped there), `dynamic_bs` with a filter
    """

    clip: PositiveFloat = 0.2
    """How far a token's ratio may fall in one step."""
    clip_higher: PositiveFloat = 0.28
    """How far it may rise."""
    dual_clip: AboveOne | None = None
    """Bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); not bounded if not set."""
    overlong: Overlong | None = None
    """No penalty if not set, for the lengths depend on the task; the paper has 20480 and 4096."""
    reduction: Reduction = "token"
    """Mean over the step's tokens, over tokens then episodes, or by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    correction: Correction = Correction()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """As the correction says."""
        return self.correction.recomputes_proximal

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Groups of one, a buffer that is all there is, and those of the tables within."""
        yield from (*lonely(self.group_size), *super().problems())
        if self.overlong is not None and self.overlong.buffer > self.overlong.longest:
            longest = self.overlong.longest
            yield ("overlong", "buffer"), f"found {self.overlong.buffer}, more than `longest`, which is {longest}; write at most that"

    def advantages(self, step: StepTokens) -> Advantages:
        """Rewards less penalties, normalised within their group."""
        rewards, metrics = step.rewards, {}
        if self.overlong is not None:
            penalties = self.overlong.penalties(step)
            rewards = rewards - penalties[step.samples]
            metrics["overlong_penalty_mean"] = float(penalties.mean())
        rewards = self.kl.charged(step, self.shaping.of(rewards))
        return spread(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping, metrics=metrics)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The clipped surrogate."""
        corrected = self.correction.of(batch, logp)
        said = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.added(said, batch, logp)
