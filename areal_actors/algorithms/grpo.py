"""Group relative policy optimization (GRPO; arXiv:2402.03300), with the decoupled PPO loss.

The mean of a group is the baseline of its members, and its standard deviation their unit (section 4.1.2). The loss is
PPO's clipped surrogate (equation 3), corrected for staleness as `correction.py` says.

Away from the paper, as the field does it: the mean over all tokens of the step instead of over tokens then sequences
(`reduction = "sequence"`), and no distance to a reference model (`kl.coefficient = 0.04`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_actors.algorithms.base import Advantages, Algorithm, Batch, StepTokens, TokenLosses
from areal_actors.algorithms.correction import Correction
from areal_actors.algorithms.groups import group_centered, group_normalized
from areal_actors.algorithms.kl import Kl
from areal_actors.algorithms.pieces import AboveOne, Reduction, call_shares
from areal_actors.algorithms.shaping import Shaping, lonely, spread
from areal_actors.algorithms.surrogate import clipped_policy
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Grpo(Algorithm, tag="grpo"):
    """`[algorithm] name = "grpo"`.

    Advantage: reward above the group's mean, over the group's standard deviation
    Surrogate: clipped token ratio × behaviour weight
    AReaL: `reward_norm` group/group; with its `adv_norm` batch/batch: `whiten = true`
    """

    clip: PositiveFloat = 0.2
    """How far a token's ratio may move in one step, downwards, and upwards unless `clip_higher` says otherwise."""
    clip_higher: PositiveFloat | None = None
    """The bound upwards (arXiv:2503.14476, equation 10); `clip` if not set."""
    dual_clip: AboveOne | None = None
    """Bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); not bounded if not set."""
    scale_by_std: bool = True
    """Divide advantages by the group's standard deviation; False as in Dr. GRPO (arXiv:2503.20783)."""
    whiten: bool = False
    """Normalise advantages once more, over all episodes of the step."""
    reduction: Reduction = "token"
    """Mean over the step's tokens (DAPO), over tokens then episodes (the GRPO paper), or by a constant (Dr. GRPO)."""
    constant_length: PositiveInt = 512
    """Divisor under `reduction = "constant"`: the longest completion, say."""
    correction: Correction = Correction()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()

    @property
    def recomputes_proximal(self) -> bool:
        """As the correction says."""
        return self.correction.recomputes_proximal

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Groups of one, too."""
        yield from (*lonely(self.group_size), *super().problems())

    def advantages(self, step: StepTokens) -> Advantages:
        """Rewards normalised within their group."""
        rewards = self.kl.charged(step, self.shaping.of(step.rewards))
        relative = (group_normalized if self.scale_by_std else group_centered)(rewards, step.samples, step.groups)
        return spread(step, relative, self.kl, self.shaping, whiten=self.whiten)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """As `reduction` says."""
        return call_shares(self.reduction, tokens, samples, self.constant_length)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The clipped surrogate."""
        corrected = self.correction.of(batch, logp)
        said = clipped_policy(batch, logp, corrected, self.clip, self.clip_higher, dual_clip=self.dual_clip)
        return self.kl.added(said, batch, logp)
