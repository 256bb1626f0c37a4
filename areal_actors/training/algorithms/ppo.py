"""Proximal policy optimization with a critic (arXiv:1707.06347), advantages by GAE (arXiv:1506.02438, equation 16).

A second model, the critic, predicts the return before each token; advantages compare the actual return with it. The policy loss is
the clipped surrogate (equation 7), the critic loss the clipped squared error:

    L = ½ max((V - R)², (V_old + clip(V - V_old, ±clip) - R)²)    R = advantage + V_old, before normalisation

γ is 1, as is usual for text (arXiv:2203.02155, appendix C.4), and λ that of the PPO paper. A truncated answer has a reward like
any other and nothing comes after it, so its last value is 0; `bootstrap_truncated` uses the value that the critic predicts after
its last token instead (arXiv:1506.02438, equation 11).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from areal_actors.core.config import Fraction, PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, CriticSettings, Need, StepTokens, TokenLosses, require
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.gae import generalized_advantages, token_rewards
from areal_actors.training.algorithms.groups import std_of
from areal_actors.training.algorithms.kl import RewardKl
from areal_actors.training.algorithms.pieces import AboveOne, LossAggregation, call_shares
from areal_actors.training.algorithms.shaping import Shaping, finalize_advantages
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class Ppo(Algorithm, tag="ppo"):
    """`[algorithm] name = "ppo"`.

    Advantage: generalized advantage estimate from the critic's values, normalised over the step's episodes
    Surrogate: clipped token ratio × behaviour weight; clipped squared error for the critic
    AReaL: `adv_norm` batch/batch and a `critic` section; `gae_lambda = 1.0`, `bootstrap_truncated = true`
    """

    clip: PositiveFloat = 0.2
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip], or [1 - clip, 1 + clip_higher]."""
    clip_higher: PositiveFloat | None = None
    """Upper bound of the ratio, minus 1; `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Upper bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); unbounded if not set."""
    discount: Fraction = 1.0
    """γ: discount factor per token."""
    gae_lambda: Fraction = 0.95
    """λ: 0 uses the next value of the critic, 1 the actual return."""
    bootstrap_truncated: bool = False
    """Add the value predicted by the critic after the last token of a truncated episode."""
    normalize_advantages: bool = True
    """Normalize advantages over all episodes of the step."""
    loss_aggregation: LossAggregation = "token_mean"
    """Mean over the step's tokens, over tokens then episodes, or sum divided by a constant; also for the critic."""
    constant_length: PositiveInt = 512
    """Divisor under `loss_aggregation = "constant"`, such as the longest completion."""
    critic: CriticSettings = CriticSettings()
    correction: Correction = Correction()
    kl: RewardKl = RewardKl()
    shaping: Shaping = Shaping()

    @property
    def needs(self) -> frozenset[Need]:
        """Values of the critic, and log-probabilities of the reference if KL is on."""
        more: frozenset[Need] = frozenset({"values", "last_values"} if self.bootstrap_truncated else {"values"})
        return super().needs | more

    @property
    def recomputes_proximal(self) -> bool:
        """True if the correction uses `Batch.proximal`."""
        return self.correction.recomputes_proximal

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns generalized advantage estimates, and the returns that the critic learns."""
        rewards = token_rewards(self.shaping.apply(step.rewards), self.kl.kl_penalties(step), step.calls, step.rows)
        values = require(step.values, "values").to(rewards.dtype)
        last_values = require(step.last_values, "last_values").to(rewards.dtype) if self.bootstrap_truncated else None
        advantages = generalized_advantages(rewards, values, step.rows, self.discount, self.gae_lambda, last_values)
        returns = advantages + values
        metrics = critic_metrics(values, returns)
        finalized = finalize_advantages(
            step, advantages, self.kl, self.shaping, normalize_advantages=self.normalize_advantages, metrics=metrics
        )
        return msgspec.structs.replace(finalized, returns=returns.to(step.behaviour.dtype))

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the clipped surrogate."""
        corrected = self.correction.correct(batch, logp)
        losses = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.add_kl_loss(losses, batch, logp)

    def critic_loss(self, batch: Batch, values: Tensor) -> TokenLosses:
        """Returns half the squared error: the larger of the errors of the value and of the clipped value."""
        old, returns = require(batch.values, "values"), require(batch.returns, "values")
        bound = self.critic.clip or math.inf
        clipped = old + (values - old).clamp(-bound, bound)
        free, bounded = (values - returns).square(), (clipped - returns).square()
        return TokenLosses(losses=free.maximum(bounded) / 2.0, measures={"critic_clip_frac": (bounded > free).detach()})


def critic_metrics(values: Tensor, returns: Tensor) -> dict[str, float]:
    """Returns means of values and returns, and the explained variance: 1 is exact, 0 is no better than the mean."""
    if not len(returns):
        return {}
    return_std = float(std_of(returns))
    explained = 1.0 - (float(std_of(returns - values)) / return_std) ** 2 if return_std else 0.0
    return {"value_mean": float(values.mean()), "return_mean": float(returns.mean()), "explained_variance": explained}
