"""Decoupled clip and dynamic sampling policy optimization (DAPO; arXiv:2503.14476).

GRPO's advantage, clip-higher (section 3.1, equation 10), the mean over all tokens (section 3.3, equation 12), and a penalty for
overlong answers (section 3.4, equation 13). Dynamic sampling (section 3.2), which drops groups whose rewards are all equal, is
done by the batcher: `[batcher] dynamic_sampling = true`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.core.config import Config, NonNegativeFloat, PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import group_normalized, sum_by
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import AboveOne, LossAggregation, call_shares
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size, is_truncated
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class Overlong(Config):
    """`[algorithm.overlong]`: soft overlong punishment (equation 13), applied before reward shaping."""

    longest: PositiveInt
    """Maximum number of sampled tokens of an episode: the paper's L_max; `sampling.max_tokens` if an episode is one answer."""
    buffer: PositiveInt
    """Number of tokens before `longest` over which the penalty grows from 0 to `factor`: the paper's L_cache."""
    factor: NonNegativeFloat = 1.0
    """Maximum penalty."""

    def penalties(self, step: StepTokens) -> Tensor:
        """Returns the penalty of each sample: float64 `[samples]`, 0 to `factor`; `factor` if its last call was truncated."""
        over = sum_by(step.sampled.to(step.rewards.dtype), step.samples) - (self.longest - self.buffer)
        return self.factor * (over / self.buffer).clamp(0.0, 1.0).masked_fill(is_truncated(step), 1.0)


class Dapo(Algorithm, tag="dapo"):
    """`[algorithm] name = "dapo"`.

    Advantage: reward less overlong penalty, above the group's mean, over the group's standard deviation
    Surrogate: clipped token ratio, wider upwards, × behaviour weight
    Filter: groups without signal (`[batcher] dynamic_sampling = true`)
    AReaL: `eps_clip_higher`, `overlong_reward_penalty` (not capped there), `dynamic_bs` with a filter
    """

    clip: PositiveFloat = 0.2
    """Lower bound of the token ratio: 1 - clip."""
    clip_higher: PositiveFloat = 0.28
    """Upper bound of the token ratio: 1 + clip_higher."""
    dual_clip: AboveOne | None = None
    """Upper bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); unbounded if not set."""
    overlong: Overlong | None = None
    """No penalty if not set, because lengths depend on the task; the paper uses 20480 and 4096."""
    loss_aggregation: LossAggregation = "token_mean"
    """Mean over the step's tokens, over tokens then episodes, or sum divided by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `loss_aggregation = "constant"`, such as the longest completion."""
    correction: Correction = Correction()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """True if the correction uses `Batch.proximal`."""
        return self.correction.recomputes_proximal

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields groups of one, a buffer above `longest`, and the problems of nested tables."""
        yield from (*check_group_size(self.group_size), *super().problems())
        if self.overlong is not None and self.overlong.buffer > self.overlong.longest:
            longest = self.overlong.longest
            yield ("overlong", "buffer"), f"found {self.overlong.buffer}, above `longest` = {longest}; write at most {longest}"

    def advantages(self, step: StepTokens) -> Advantages:
        """Subtracts penalties and normalizes rewards within their group."""
        rewards, metrics = step.rewards, {}
        if self.overlong is not None:
            penalties = self.overlong.penalties(step)
            rewards = rewards - penalties[step.samples]
            metrics["overlong_penalty_mean"] = float(penalties.mean())
        rewards = self.kl.subtract_kl(step, self.shaping.apply(rewards))
        return broadcast_to_tokens(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping, metrics=metrics)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the clipped surrogate."""
        corrected = self.correction.correct(batch, logp)
        losses = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.add_kl_loss(losses, batch, logp)
