"""`[algorithm.kl]`: KL divergence from a reference model, as a loss term or as a penalty on the reward.

With d = logp - reference, for tokens sampled by the current policy (Schulman, "Approximating KL divergence", 2020; k3
is equation 4 of arXiv:2402.03300):

    k1 = d    k2 = d² / 2    k3 = exp(-d) - 1 + d

The mean of k1 and of k3 is the divergence itself. As a loss, k2 has the gradient of the divergence, k3 approximates it,
and the gradient of k1 does not depend on the reference: k1 is rejected there.

Tokens sampled by older weights are not samples of the current policy. `importance_weighted` multiplies the loss term by
w = exp(logp - behaviour), so that its mean gradient is that of the divergence of the current policy for both
estimators: k3 with the gradient through w (arXiv:2512.02556, section 3.1), because the mean of w k3 is the divergence;
k2 with w held constant, because the gradient of k2 has the right mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from areal_actors.core.config import NonNegativeFloat
from areal_actors.training.algorithms.base import (
    INITIAL,
    Batch,
    Component,
    FrozenModel,
    Need,
    Problem,
    StepTokens,
    TokenLosses,
    require,
)
from areal_actors.training.algorithms.groups import sum_by
from areal_actors.training.algorithms.pieces import Estimator, estimate, ratio

if TYPE_CHECKING:
    from torch import Tensor

REWARD_LIMIT = 10.0
"""Token estimates are clamped to ±10 nats before they are subtracted from the reward."""


class Kl(Component):
    """KL penalty for moving away from the reference model. Off while the coefficient is 0."""

    coefficient: NonNegativeFloat = 0.0
    """Penalty per nat; 0 switches KL off, and no reference is loaded."""
    apply_to: Literal["loss", "reward"] = "loss"
    """`loss`: a loss term with gradient. `reward`: subtracted from the reward before advantages are computed, measured
    on the policy that sampled the tokens."""
    estimator: Estimator = "k3"
    """`k1` is d, `k2` d² / 2, `k3` exp(-d) - 1 + d; the loss takes `k2` or `k3`."""
    reference: str = INITIAL
    """`initial` (the model that the run begins with), a folder, or a hub id with the same tokenizer."""
    importance_weighted: bool = False
    """Multiply the loss term by the ratio of the current weights to those that sampled the token; unbounded."""

    @property
    def needs(self) -> frozenset[Need]:
        """Log-probabilities of the reference, unless KL is off."""
        return frozenset({"reference"}) if self.coefficient else frozenset()

    @property
    def models(self) -> Mapping[FrozenModel, str]:
        """The reference, unless KL is off."""
        return {"reference": self.reference} if self.coefficient else {}

    def problems(self) -> Iterator[Problem]:
        """Yields the problems of the settings; see `Algorithm.problems`."""
        if self.coefficient and not self.reference:
            yield (
                ("kl", "reference"),
                'found none, but KL needs a reference model; write "initial", a folder or a hub id',
            )
        if self.coefficient and self.apply_to == "loss" and self.estimator == "k1":
            yield (
                ("kl", "estimator"),
                (
                    'found "k1", whose gradient as a loss does not depend on the reference; write "k2" or "k3", or'
                    ' apply_to = "reward"'
                ),
            )
        if self.importance_weighted and (self.apply_to != "loss" or not self.coefficient):
            why = "kl.coefficient is 0" if not self.coefficient else 'apply_to = "reward" has no loss term'
            yield ("kl", "importance_weighted"), f"found true, but {why}; leave one of the two out"

    def add_kl_loss(self, policy: TokenLosses, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the policy losses plus the KL term, if `apply_to = "loss"`."""
        if not self.coefficient or self.apply_to != "loss":
            return policy
        distance = estimate(self.estimator, logp - require(batch.reference, "reference"))
        if self.importance_weighted:
            distance = distance * ratio(logp if self.estimator == "k3" else logp.detach(), batch.behaviour)
        measures = policy.measures | {"reference_kl": distance.detach()}
        return TokenLosses(losses=policy.losses + self.coefficient * distance, measures=measures)

    def kl_penalties(self, step: StepTokens) -> Tensor:
        """Returns the KL penalty of each token: float64 `[tokens]`, 0 unless `apply_to = "reward"`."""
        if not self.coefficient or self.apply_to != "reward":
            return step.rewards.new_zeros(len(step.sequences))
        difference = (step.behaviour - require(step.reference, "reference")).to(step.rewards.dtype)
        return self.coefficient * estimate(self.estimator, difference).clamp(-REWARD_LIMIT, REWARD_LIMIT)

    def metrics(self, step: StepTokens) -> dict[str, float]:
        """Returns the mean KL of the sampling policy to the reference, in nats per token, if `apply_to = "reward"`."""
        penalties = self.kl_penalties(step)
        in_reward = self.coefficient and self.apply_to == "reward" and len(penalties)
        return {"reference_kl": float(penalties.mean()) / self.coefficient} if in_reward else {}

    def subtract_kl(self, step: StepTokens, rewards: Tensor) -> Tensor:
        """Returns R of each call minus the penalties of all tokens of its sample.

        float64 `[calls]` → float64 `[calls]`.
        """
        return rewards - sum_by(self.kl_penalties(step), step.samples[step.calls], len(step.groups))[step.samples]


class RewardKl(Kl):
    """KL with other defaults: subtracted from the reward, estimated with k1."""

    apply_to: Literal["loss", "reward"] = "reward"
    estimator: Estimator = "k1"
