"""On-policy distillation: reverse KL to a teacher on the student's own samples, alone or with rewards.

The student samples, the teacher scores the same tokens, and the student minimizes the reverse divergence KL(student ‖
teacher) (on-policy distillation of arXiv:2306.13649; arXiv:2306.08543, equation 1), estimated token by token with d =
logp - teacher:

    L = reward_weight · L_policy + teacher_weight · w · k(d)    k2 = d² / 2    k3 = exp(-d) - 1 + d

The gradient of k2 is d ∇logp, the gradient of the divergence; the gradient of k1 (d itself) is ∇logp, which does not
depend on the teacher. `w` corrects for staleness, as it does in L_policy, which is GRPO's loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from areal_actors.core.config import NonNegativeFloat, PositiveFloat
from areal_actors.training.algorithms.base import Advantages, Batch, FrozenModel, Need, Problem, StepTokens, require
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.pieces import clipped_surrogate, estimate, ratio
from areal_actors.training.algorithms.policy_gradient import PolicyGradient
from areal_actors.training.algorithms.veto import Corrected

if TYPE_CHECKING:
    from torch import Tensor


class Distillation(PolicyGradient, tag="distillation"):
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
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""
    correction: Correction = Correction()

    @property
    def compares_groups(self) -> bool:
        """True if rewards count."""
        return bool(self.reward_weight)

    @property
    def needs(self) -> frozenset[Need]:
        """Log-probabilities of the teacher, and of the reference if KL is on."""
        return super().needs | {"teacher"}

    @property
    def models(self) -> Mapping[FrozenModel, str]:
        """The teacher, and the reference if KL is on."""
        return {**super().models, "teacher": self.teacher}

    def problems(self) -> Iterator[Problem]:
        """Yields also a missing teacher."""
        yield from super().problems()
        if not self.teacher:
            yield ("teacher",), "found none; write the folder or the hub id of a model with the same tokenizer"

    def advantages(self, step: StepTokens) -> Advantages:
        """Normalizes rewards within their group, and measures the distance to the teacher."""
        advantages = super().advantages(step)
        distance = (step.behaviour - require(step.teacher, "teacher")).to(step.rewards.dtype)
        metrics = {"teacher_kl": float(distance.mean())} if len(distance) else {}
        return msgspec.structs.replace(advantages, metrics=advantages.metrics | metrics)

    def surrogate(self, batch: Batch, logp: Tensor, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the divergence from the teacher plus the clipped surrogate."""
        policy, measures = clipped_surrogate(ratio(logp, corrected.anchor), batch.advantages, self.clip)
        divergences = estimate(self.estimator, logp - require(batch.teacher, "teacher"))
        return self.reward_weight * policy + self.teacher_weight * divergences, measures | {"teacher_loss": divergences}
