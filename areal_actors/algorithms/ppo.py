"""Proximal policy optimization with a critic (arXiv:1707.06347), advantages by GAE (arXiv:1506.02438, equation 16).

A second model, the critic, learns what to expect before each token; the advantage of a token is how much better than that
things went from it on. The policy's loss is the clipped surrogate (equation 7), the critic's the clipped squared error:

    L = ½ max((V - R)², (V_old + clip(V - V_old, ±clip) - R)²)    R = advantage + V_old, before normalisation

γ is 1, as is usual for text (arXiv:2203.02155, appendix C.4), and λ that of the PPO paper. An answer that was cut by length was
judged all the same and nothing comes after it, so its last value is 0; `bootstrap_truncated` lets what the critic expects after
its last token stand for what is missing instead (arXiv:1506.02438, equation 11).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, CriticSettings, Need, StepTokens, TokenLosses, given
from areal_actors.algorithms.correction import Correction
from areal_actors.algorithms.gae import generalized_advantages, token_rewards
from areal_actors.algorithms.groups import std_of
from areal_actors.algorithms.kl import RewardKl
from areal_actors.algorithms.pieces import AboveOne, Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, over_tokens
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.config import Fraction, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Ppo(Algorithm, tag="ppo"):
    """`[algorithm] name = "ppo"`.

    Advantage: generalized advantage estimate from the critic's values, normalised over the step's episodes
    Surrogate: clipped token ratio × behaviour weight; clipped squared error for the critic
    AReaL: `adv_norm` batch/batch and a `critic` section; `gae_lambda = 1.0`, `bootstrap_truncated = true`
    """

    clip: PositiveFloat = 0.2
    """How far a token's ratio may move in one step, downwards, and upwards unless `clip_higher` says otherwise."""
    clip_higher: PositiveFloat | None = None
    """The bound upwards; `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); not bounded if not set."""
    discount: Fraction = 1.0
    """γ: what the reward of a token is worth to the one before it."""
    gae_lambda: Fraction = 0.95
    """λ: 0 trusts the critic's next value, 1 only what came."""
    bootstrap_truncated: bool = False
    """Add what the critic expects after the last token of an episode that was cut by length there."""
    whiten: bool = True
    """Normalise advantages over all episodes of the step."""
    reduction: Reduction = "token"
    """Mean over the step's tokens, over tokens then episodes, or by a constant; for the critic too."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    critic: CriticSettings = CriticSettings()
    correction: Correction = Correction()
    kl: RewardKl = RewardKl()
    shaping: Shaping = Shaping()

    @property
    def needs(self) -> frozenset[Need]:
        """The critic's values, and those of the distance to the reference."""
        more: frozenset[Need] = frozenset({"values", "last_values"} if self.bootstrap_truncated else {"values"})
        return super().needs | more

    @property
    def recomputes_proximal(self) -> bool:
        """As the correction says."""
        return self.correction.recomputes_proximal

    def advantages(self, step: StepTokens) -> Advantages:
        """Generalized advantage estimates, and the returns that the critic learns."""
        rewards = token_rewards(self.shaping.of(step.rewards), self.kl.charges(step), step.calls, step.rows)
        values = given(step.values, "values").to(rewards.dtype)
        last_values = given(step.last_values, "last_values").to(rewards.dtype) if self.bootstrap_truncated else None
        advantages = generalized_advantages(rewards, values, step.rows, self.discount, self.gae_lambda, last_values)
        returns = advantages + values
        worth = over_tokens(step, advantages, self.kl, self.shaping, whiten=self.whiten, metrics=said_of(values, returns))
        return msgspec.structs.replace(worth, returns=returns.to(step.behaviour.dtype))

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The clipped surrogate."""
        corrected = self.correction.of(batch, logp)
        said = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.added(said, batch, logp)

    def critic_loss(self, batch: Batch, values: Tensor) -> TokenLosses:
        """Half the squared error, the larger of that of the value and that of the value held near to the old one."""
        old, returns = given(batch.values, "values"), given(batch.returns, "values")
        bound = self.critic.clip or math.inf
        held = old + (values - old).clamp(-bound, bound)
        free, bounded = (values - returns).square(), (held - returns).square()
        return TokenLosses(losses=free.maximum(bounded) / 2.0, measures={"critic_clip_share": (bounded > free).detach()})


def said_of(values: Tensor, returns: Tensor) -> dict[str, float]:
    """How well the critic knew what came: 1 exactly, 0 no better than their mean."""
    if not len(returns):
        return {}
    spread = float(std_of(returns))
    explained = 1.0 - (float(std_of(returns - values)) / spread) ** 2 if spread else 0.0
    return {"value_mean": float(values.mean()), "return_mean": float(returns.mean()), "explained_variance": explained}
