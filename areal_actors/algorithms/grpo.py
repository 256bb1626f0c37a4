"""GRPO with the decoupled PPO loss.

The mean of a group is the baseline of its members (arXiv:2402.03300, equation 3 and section 4.1.2). The loss is
AReaL's decoupled PPO (arXiv:2505.24298, section 5.2), which keeps apart the two jobs of PPO's old policy:

    J = E[ w · min(u A, clip(u, 1 - clip, 1 + clip_higher) A) ]
    u = exp(logp - proximal)         bounds the update: proximal weights are those at the start of the step
    w = exp(proximal - behaviour)    corrects for staleness: behaviour weights sampled the token; no gradient

With one minibatch per step the current weights are the proximal ones, so u is 1 and nothing is clipped; `clip` acts
from the second minibatch on, and in plain PPO. There is no KL term: a reference model is not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Algorithm, Batch, TokenLosses
from areal_actors.algorithms.pieces import (
    Reduction,
    behaviour_weight,
    clipped,
    divergence,
    dual_clipped,
    group_normalized,
    is_clipped,
    ratio,
    row_shares,
)
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Grpo(Algorithm, tag="grpo"):
    """`[algorithm] name = "grpo"`."""

    clip: PositiveFloat = 0.2
    """How far a token's ratio may move in one step, downwards, and upwards unless `clip_higher` says otherwise."""
    clip_higher: PositiveFloat | None = None
    """The bound upwards (arXiv:2503.14476, equation 10); `clip` if not set."""
    dual_clip: PositiveFloat | None = None
    """Bound of the loss of a token with negative advantage, in multiples of |A|, above 1; not bounded if not set."""
    decoupled: bool = True
    """Ratio to the proximal weights, times the behaviour weight. False: plain PPO, ratio to the behaviour weights."""
    behaviour_cap: PositiveFloat | None = 5.0
    """Largest behaviour weight; not capped if not set."""
    scale_by_std: bool = True
    """Divide advantages by the group's standard deviation; False as in Dr. GRPO (arXiv:2503.20783)."""
    reduction: Reduction = "token"
    """Mean over the step's tokens (DAPO), over tokens then sequences (the GRPO paper), or by a constant (Dr. GRPO)."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""

    def advantages(self, rewards: Tensor, groups: Tensor) -> Tensor:
        """Rewards normalised within their group."""
        return group_normalized(rewards, groups, scale=self.scale_by_std)

    def shares(self, tokens: Tensor) -> Tensor:
        """As `reduction` says."""
        return row_shares(self.reduction, tokens, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The decoupled PPO loss, or the plain one."""
        above = self.clip if self.clip_higher is None else self.clip_higher
        ratios = ratio(logp, batch.proximal if self.decoupled else batch.behaviour)
        losses = clipped(ratios, batch.advantages, self.clip, above)
        if self.dual_clip is not None:
            losses = dual_clipped(losses, batch.advantages, self.dual_clip)
        measures = {
            "clip_share": is_clipped(ratios, batch.advantages, self.clip, above),
            "approximate_kl": divergence(logp, batch.behaviour),
        }
        if self.decoupled:
            weight = behaviour_weight(batch.proximal, batch.behaviour, self.behaviour_cap)
            losses = losses * weight
            measures |= {"behaviour_weight_mean": weight, "behaviour_weight_max": weight}
            if self.behaviour_cap is not None:
                measures["capped_share"] = weight >= self.behaviour_cap
        return TokenLosses(losses=losses, measures={name: column.detach() for name, column in measures.items()})
