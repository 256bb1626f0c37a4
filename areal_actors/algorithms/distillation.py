"""On-policy distillation: learn from a teacher what to say after one's own words, alone or beside rewards.

The student samples, the teacher scores the very tokens, and the student descends the reverse divergence KL(student ‖ teacher)
(on-policy distillation of arXiv:2306.13649; arXiv:2306.08543, equation 1), estimated token by token with d = logp - teacher:

    L = reward_weight · L_policy + teacher_weight · w · k(d)    k2 = d² / 2    k3 = exp(-d) - 1 + d

The gradient of k2 is d ∇logp, which is that of the divergence; d itself as a loss (k1) would have ∇logp, without the teacher in
it. `w` corrects for staleness as it does for rewards, whose part is GRPO's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, Need, StepTokens, TokenLosses, given
from areal_actors.algorithms.correction import Correction
from areal_actors.algorithms.groups import group_normalized
from areal_actors.algorithms.kl import Kl, estimate
from areal_actors.algorithms.pieces import Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, lonely, spread
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.config import NonNegativeFloat, PositiveFloat, PositiveInt

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
    """Of the divergence from the teacher."""
    reward_weight: NonNegativeFloat = 0.0
    """Of the policy loss from rewards; 0 learns from the teacher alone."""
    estimator: Literal["k2", "k3"] = "k2"
    clip: PositiveFloat = 0.2
    """How far a token's ratio may move in one step, where rewards count."""
    reduction: Reduction = "token"
    """Mean over the step's tokens, over tokens then episodes, or by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    correction: Correction = Correction()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def needs(self) -> frozenset[Need]:
        """The teacher's log-probabilities, and those of the distance to the reference."""
        return super().needs | {"teacher"}

    @property
    def recomputes_proximal(self) -> bool:
        """As the correction says."""
        return self.correction.recomputes_proximal

    @property
    def models(self) -> Mapping[Literal["reference", "teacher"], str]:
        """The teacher, and the reference if there is one."""
        return {**super().models, "teacher": self.teacher}

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Groups of one where rewards count, no teacher, and those of the tables within."""
        yield from lonely(self.group_size) if self.reward_weight else ()
        yield from super().problems()
        if not self.teacher:
            yield ("teacher",), "found none; write the folder or the hub id of a model with the same tokenizer"

    def advantages(self, step: StepTokens) -> Advantages:
        """Rewards normalised within their group, and how far the teacher is."""
        rewards = self.kl.charged(step, self.shaping.of(step.rewards))
        distance = (step.behaviour - given(step.teacher, "teacher")).to(rewards.dtype)
        metrics = {"teacher_kl": float(distance.mean())} if len(distance) else {}
        return spread(step, group_normalized(rewards, step.samples, step.groups), self.kl, self.shaping, metrics=metrics)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The divergence from the teacher, and the clipped surrogate beside it."""
        corrected = self.correction.of(batch, logp)
        said = clipped_policy(batch, logp, corrected, self.clip)
        away = estimate(self.estimator, logp - given(batch.teacher, "teacher"))
        losses = self.reward_weight * said.losses + self.teacher_weight * corrected.weighted(away)
        return self.kl.added(TokenLosses(losses=losses, measures=said.measures | {"teacher_loss": away.detach()}), batch, logp)
