"""On-policy distillation: reverse KL to a teacher on the student's own samples, alone or with rewards.

The student samples, the teacher scores the same tokens, and the student minimizes the reverse divergence KL(student ‖ teacher)
(on-policy distillation of arXiv:2306.13649; arXiv:2306.08543, equation 1), estimated token by token with d = logp - teacher:

    L = reward_weight · L_policy + teacher_weight · w · k(d)    k2 = d² / 2    k3 = exp(-d) - 1 + d

The gradient of k2 is d ∇logp, the gradient of the divergence; the gradient of k1 (d itself) is ∇logp, which does not depend on the
teacher. `w` corrects for staleness, as it does in L_policy, which is GRPO's loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from areal_actors.core.config import NonNegativeFloat, PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, Need, StepTokens, TokenLosses, require
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import group_normalized
from areal_actors.training.algorithms.kl import Kl, estimate
from areal_actors.training.algorithms.pieces import LossAggregation, call_shares
from areal_actors.training.algorithms.shaping import Shaping, broadcast_to_tokens, check_group_size
from areal_actors.training.algorithms.surrogate import clipped_policy

if TYPE_CHECKING:
    from torch import Tensor


class Distillation(Algorithm, tag="distillation"):
    """`[algorithm] name = "distillation"`.

    Advantage: reward above the group's mean, over the group's standard deviation; unused while `reward_weight` is 0
    Surrogate: reverse KL to the teacher × behaviour weight, beside the clipped token ratio
    AReaL: `teacher` section, `distill_loss_weight`, `rl_loss_weight`, whose joint gradient has no teacher in it
    """

    teacher: str
    """A folder or a hub id of a model with the same tokenizer."""
    teacher_weight: PositiveFloat = 1.0
    """Weight of the divergence from the teacher."""
    reward_weight: NonNegativeFloat = 0.0
    """Weight of the policy loss from rewards; 0 learns only from the teacher."""
    estimator: Literal["k2", "k3"] = "k2"
    """Estimator of the divergence from the teacher, as `kl.estimator`."""
    clip: PositiveFloat = 0.2
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip] in the policy loss from rewards."""
    loss_aggregation: LossAggregation = "token_mean"
    """Mean over the step's tokens, over tokens then episodes, or sum divided by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `loss_aggregation = "constant"`, such as the longest completion."""
    correction: Correction = Correction()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def needs(self) -> frozenset[Need]:
        """Log-probabilities of the teacher, and of the reference if KL is on."""
        return super().needs | {"teacher"}

    @property
    def recomputes_proximal(self) -> bool:
        """True if the correction uses `Batch.proximal`."""
        return self.correction.recomputes_proximal

    @property
    def models(self) -> Mapping[Literal["reference", "teacher"], str]:
        """The teacher, and the reference if KL is on."""
        return {**super().models, "teacher": self.teacher}

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields groups of one if rewards count, a missing teacher, and the problems of nested tables."""
        yield from check_group_size(self.group_size) if self.reward_weight else ()
        yield from super().problems()
        if not self.teacher:
            yield ("teacher",), "found none; write the folder or the hub id of a model with the same tokenizer"

    def advantages(self, step: StepTokens) -> Advantages:
        """Normalizes rewards within their group, and measures the distance to the teacher."""
        rewards = self.kl.subtract_kl(step, self.shaping.apply(step.rewards))
        distance = (step.behaviour - require(step.teacher, "teacher")).to(rewards.dtype)
        metrics = {"teacher_kl": float(distance.mean())} if len(distance) else {}
        return broadcast_to_tokens(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping, metrics=metrics)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the divergence from the teacher plus the clipped surrogate."""
        corrected = self.correction.correct(batch, logp)
        policy = clipped_policy(batch, logp, corrected, self.clip)
        divergences = estimate(self.estimator, logp - require(batch.teacher, "teacher"))
        losses = self.reward_weight * policy.losses + self.teacher_weight * corrected.weighted(divergences)
        measures = policy.measures | {"teacher_loss": divergences.detach()}
        return self.kl.add_kl_loss(TokenLosses(losses=losses, measures=measures), batch, logp)
