"""`[algorithm.kl]`: the distance to a reference model, as a term of the loss or in the reward.

With d = logp - reference, for tokens that the current policy sampled (Schulman, "Approximating KL divergence", 2020; k3 is
equation 4 of arXiv:2402.03300):

    k1 = d    k2 = d² / 2    k3 = exp(-d) - 1 + d

k1 and k3 have the divergence itself as their mean. As a loss, the gradient of k2 is that of the divergence, that of k3 is
near to it, and that of k1 does not contain the reference at all: it is refused there.

Tokens that older weights sampled are not samples of the current policy. `importance_weighted` multiplies the term of the loss
with w = exp(logp - behaviour), so that its mean gradient is that of the divergence of the current policy for both estimators:
k3 with the gradient through w (arXiv:2512.02556, section 3.1), because the mean of w k3 is the divergence; k2 with w
held constant, because it is the gradient of k2 that has the right mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from areal_actors.algorithms.base import INITIAL, Batch, Need, StepTokens, TokenLosses, given
from areal_actors.algorithms.groups import sum_by
from areal_actors.algorithms.pieces import LOG_RATIO_LIMIT, ratio
from areal_actors.config import Config, NonNegativeFloat

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]

REWARD_LIMIT = 10.0
"""A token's estimate is held within ±10 nats before it is charged to the reward."""


def estimate(estimator: Estimator, difference: Tensor) -> Tensor:
    """Estimate of the divergence from each token's difference of log-probabilities: `[n]` → `[n]`."""
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2.0
    bounded = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (-bounded).exp() - 1.0 + bounded


class Kl(Config):
    """What it costs to go away from the reference model. Off while the coefficient is 0."""

    coefficient: NonNegativeFloat = 0.0
    """What a nat costs; 0 switches it off, and no reference is loaded."""
    place: Literal["loss", "reward"] = "loss"
    """`loss`: a term beside the policy's, with gradient. `reward`: charged to the reward before advantages are told, measured
    on the policy that sampled the tokens."""
    estimator: Estimator = "k3"
    """`k1` is d, `k2` d² / 2, `k3` exp(-d) - 1 + d; in the loss `k2` or `k3`."""
    reference: str = INITIAL
    """`initial` (the model that the run begins with), a folder, or a hub id with the same tokenizer."""
    importance_weighted: bool = False
    """Multiply the term of the loss with the ratio of the current weights to those that sampled the token; unbounded."""

    @property
    def needs(self) -> frozenset[Need]:
        """The reference's log-probabilities, unless it is off."""
        return frozenset({"reference"}) if self.coefficient else frozenset()

    @property
    def models(self) -> Mapping[Literal["reference", "teacher"], str]:
        """The reference, unless it is off."""
        return {"reference": self.reference} if self.coefficient else {}

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """As `Algorithm.problems`."""
        if self.coefficient and not self.reference:
            yield (
                ("kl", "reference"),
                'found none, but a distance needs something to be distant from; write "initial", a folder or a hub id',
            )
        if self.coefficient and self.place == "loss" and self.estimator == "k1":
            yield (
                ("kl", "estimator"),
                'found "k1", whose gradient as a loss does not contain the reference; write "k2" or "k3", or place = "reward"',
            )
        if self.importance_weighted and (self.place != "loss" or not self.coefficient):
            there = "the distance is off" if not self.coefficient else 'with place = "reward" there is no term to weigh'
            yield ("kl", "importance_weighted"), f"found true, but {there}; leave one of the two out"

    def added(self, said: TokenLosses, batch: Batch, logp: Tensor) -> TokenLosses:
        """Losses with the term of the loss, where that is its place."""
        if not self.coefficient or self.place != "loss":
            return said
        distance = estimate(self.estimator, logp - given(batch.reference, "reference"))
        if self.importance_weighted:
            distance = distance * ratio(logp if self.estimator == "k3" else logp.detach(), batch.behaviour)
        measures = said.measures | {"reference_kl": distance.detach()}
        return TokenLosses(losses=said.losses + self.coefficient * distance, measures=measures)

    def charges(self, step: StepTokens) -> Tensor:
        """What each token costs of its reward: float64 `[tokens]`, 0 where that is not its place."""
        if not self.coefficient or self.place != "reward":
            return step.rewards.new_zeros(len(step.rows))
        difference = (step.behaviour - given(step.reference, "reference")).to(step.rewards.dtype)
        return self.coefficient * estimate(self.estimator, difference).clamp(-REWARD_LIMIT, REWARD_LIMIT)

    def metrics(self, step: StepTokens) -> dict[str, float]:
        """How far the policy that sampled is from the reference, in nats per token, where that is in the reward."""
        charges = self.charges(step)
        in_reward = self.coefficient and self.place == "reward" and len(charges)
        return {"reference_kl": float(charges.mean()) / self.coefficient} if in_reward else {}

    def charged(self, step: StepTokens, rewards: Tensor) -> Tensor:
        """R of each call less the charges of all tokens of its sample: float64 `[calls]` → float64 `[calls]`."""
        return rewards - sum_by(self.charges(step), step.samples[step.calls], len(step.groups))[step.samples]


class RewardKl(Kl):
    """The same, charged to the reward as k1 unless the recipe says otherwise."""

    place: Literal["loss", "reward"] = "reward"
    estimator: Estimator = "k1"
