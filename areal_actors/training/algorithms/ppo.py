"""Proximal policy optimization with a critic (arXiv:1707.06347), advantages by GAE (arXiv:1506.02438, equation 16).

A second model, the critic, predicts the return before each token; advantages compare the actual return with it. The
policy loss is the clipped surrogate (equation 7), the critic loss the clipped squared error:

    L = ½ max((V - R)², (V_old + clip(V - V_old, ±clip) - R)²)    R = advantage + V_old, before normalisation

γ is 1, as is usual for text (arXiv:2203.02155, appendix C.4), and λ that of the PPO paper. A truncated answer has a
reward like any other and nothing comes after it, so its last value is 0; `bootstrap_truncated` uses the value that the
critic predicts after its last token instead (arXiv:1506.02438, equation 11). `loss_aggregation` applies to both losses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from areal_actors.core.config import Fraction
from areal_actors.training.algorithms.base import (
    Advantages,
    Batch,
    CriticSettings,
    Need,
    StepTokens,
    TokenLosses,
    require,
)
from areal_actors.training.algorithms.gae import generalized_advantages, token_rewards
from areal_actors.training.algorithms.groups import std_of
from areal_actors.training.algorithms.kl import RewardKl
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy

if TYPE_CHECKING:
    from torch import Tensor


class Ppo(ClippedPolicy, tag="ppo"):
    """`[algorithm] name = "ppo"`.

    Advantage: generalized advantage estimate from the critic's values, normalised over the step's episodes
    Surrogate: clipped token ratio × behaviour weight; clipped squared error for the critic
    AReaL: `adv_norm` batch/batch and a `critic` section; `gae_lambda = 1.0`, `bootstrap_truncated = true`
    """

    discount: Fraction = 1.0
    """γ: discount factor per token."""
    gae_lambda: Fraction = 0.95
    """λ: 0 uses the next value of the critic, 1 the actual return."""
    bootstrap_truncated: bool = False
    """Add the value predicted by the critic after the last token of a truncated episode."""
    normalize_advantages: bool = True
    """Normalize advantages over all episodes of the step."""
    critic: CriticSettings = CriticSettings()
    kl: RewardKl = RewardKl()

    @property
    def compares_groups(self) -> bool:
        """False: the critic is the baseline."""
        return False

    @property
    def needs(self) -> frozenset[Need]:
        """Values of the critic, and log-probabilities of the reference if KL is on."""
        more: frozenset[Need] = frozenset({"values", "last_values"} if self.bootstrap_truncated else {"values"})
        return super().needs | more

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns generalized advantage estimates, and the returns that the critic learns."""
        rewards = token_rewards(
            self.shaping.apply(step.rewards), self.kl.kl_penalties(step), step.calls, step.sequences
        )
        values = require(step.values, "values").to(rewards.dtype)
        last_values = require(step.last_values, "last_values").to(rewards.dtype) if self.bootstrap_truncated else None
        advantages = generalized_advantages(
            rewards, values, step.sequences, self.discount, self.gae_lambda, last_values
        )
        returns = advantages + values
        finalized = self.finalize(step, advantages)
        metrics = finalized.metrics | critic_metrics(values, returns)
        return msgspec.structs.replace(finalized, returns=returns.to(step.behaviour.dtype), metrics=metrics)

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
