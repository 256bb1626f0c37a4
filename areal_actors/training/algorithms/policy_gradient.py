"""Base of algorithms that learn from rewards: advantages, a surrogate with off-policy correction, and a KL penalty.

shaped rewards - KL in the reward → `compare` → advantages of calls → of tokens
`surrogate` × importance weight + KL in the loss → token losses
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from areal_actors.core.config import NonNegativeFloat, PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, Problem, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import group_normalized, whiten
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.pieces import LossAggregation, call_shares, clipped_surrogate, estimate, ratio
from areal_actors.training.algorithms.separate_rewards import compare_separately, summed_reward_metrics
from areal_actors.training.algorithms.shaping import Shaping
from areal_actors.training.algorithms.spans import Spans
from areal_actors.training.algorithms.veto import Corrected, Veto

if TYPE_CHECKING:
    from torch import Tensor


class PolicyGradient(Algorithm):
    """Base of algorithms with group-relative advantages and any surrogate; its correction has only the veto."""

    loss_aggregation: LossAggregation = "token_mean"
    """Mean over the step's tokens, over tokens then episodes, or sum over an episode divided by a constant."""
    constant_length: PositiveInt = 512
    """Divisor under `loss_aggregation = "constant"`, such as the longest completion."""
    reward_normalization: Literal["sum", "separate"] = "sum"
    """Normalization of several named rewards: of their weighted `sum`, or of each in its group, then of their weighted
    sum over the step (GDPO, arXiv:2601.05242)."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Entropy bonus: this times the entropy of each token's distribution, in nats, is subtracted from its loss
    (arXiv:1602.01783, section 4), so that answers stay different; 0 for none."""
    correction: Veto = Veto()
    kl: Kl = Kl()
    shaping: Shaping = Shaping()
    spans: Spans = Spans()

    @property
    def takes_spans(self) -> bool:
        """True: tokens get the credits of `spans`."""
        return True

    @property
    def rewards_entropy(self) -> bool:
        """True with an entropy bonus."""
        return self.entropy_coefficient > 0.0

    @property
    def compares_groups(self) -> bool:
        """True if advantages compare the episodes of a group."""
        return True

    @property
    def scales_by_std(self) -> bool:
        """True if advantages are divided by a standard deviation of rewards, so that the sum of several hides some."""
        return True

    @property
    def normalize_advantages(self) -> bool:
        """True if advantages are also normalized over all episodes of the step; a setting of some algorithms."""
        return False

    @property
    def recomputes_proximal(self) -> bool:
        """True if the correction uses `Batch.proximal`."""
        return self.correction.recomputes_proximal

    def problems(self) -> Iterator[Problem]:
        """Yields also the problem of groups of one."""
        if self.compares_groups and self.group_size == 1:
            yield (
                ("group_size",),
                "found 1, but an advantage compares an episode with the others of its group; write at least 2",
            )
        if self.reward_normalization == "separate":
            yield from self._separation_problems()
        yield from super().problems()

    def _separation_problems(self) -> Iterator[Problem]:
        """Yields settings under which separate rewards change nothing, or that change their sum."""
        fault = f'found "separate", but {type(self).__struct_config__.tag} divides no reward by its standard deviation'
        if not (self.compares_groups and self.scales_by_std):
            yield (
                ("reward_normalization",),
                f'{fault} in a group; write "sum", or name = "grpo"',
            )
        if self.kl.coefficient and self.kl.apply_to == "reward":
            yield ("kl", "apply_to"), 'found "reward", whose penalty would be normalized like a reward; write "loss"'
        usual = Shaping(truncated=self.shaping.truncated)
        for name in ("bias", "scale", "clip"):
            if (value := getattr(self.shaping, name)) != getattr(usual, name):
                yield (
                    ("shaping", name),
                    f"found {value}, but rewards are normalized one by one; leave it out, or set their weights",
                )

    def compare(self, rewards: Tensor, samples: Tensor, groups: Tensor) -> Tensor:
        """Returns advantages.

        float64 `[calls]`, int64 `[calls]`, int64 `[samples]` → float64 `[calls]`; see `groups.py`.
        """
        return group_normalized(rewards, samples, groups)

    def advantages(self, step: StepTokens) -> Advantages:
        """Compares shaped rewards, less the KL penalty, and gives every token the advantage of its call."""
        if self.reward_normalization == "separate":
            compared, metrics = compare_separately(step, self.compare)
        else:
            rewards = self.kl.subtract_kl(step, self.shaping.apply(step.rewards))
            compared = self.compare(rewards, step.samples, step.groups)
            metrics = summed_reward_metrics(step, rewards, compared, self.shaping.scale)
        advantages = self.finalize(step, compared[step.calls])
        return msgspec.structs.replace(advantages, metrics={**advantages.metrics, **metrics})

    def finalize(self, step: StepTokens, advantages: Tensor) -> Advantages:
        """Returns token advantages, float64 `[tokens]`, in the precision of the step.

        With the credits of spans, normalized on request, then masked.
        """
        spanned = step.spans is not None
        advantages = self.spans.credit(step, advantages, self.compare) if spanned else advantages
        over_step = self.normalize_advantages or self.reward_normalization == "separate"
        tokens = whiten(advantages, step.samples[step.calls]) if over_step else advantages
        if self.reward_normalization == "separate":  # not the rounding of the mean: a group without signal has 0
            tokens = tokens.masked_fill(advantages == 0, 0.0)
        kept = self.shaping.loss_mask(step)
        masked = {} if kept is None or not len(kept) else {"truncated_masked_frac": float((~kept).double().mean())}
        return Advantages(
            tokens=tokens.to(step.behaviour.dtype),
            kept=kept,
            metrics={**self.kl.metrics(step), **(self.spans.metrics(step) if spanned else {}), **masked},
        )

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of `loss_aggregation`."""
        return call_shares(self.loss_aggregation, tokens, samples, self.constant_length)

    def surrogate(self, batch: Batch, logp: Tensor, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns token losses before importance weights, `[tokens]` with gradient, and measures; see `TokenLosses`."""
        raise NotImplementedError

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the surrogate times the importance weight, 0 for vetoed tokens, plus the KL term less the entropy."""
        corrected = self.correction.correct(batch, logp)
        losses, measures = self.surrogate(batch, logp, corrected)
        measures = {**measures, "approx_kl": estimate("k3", batch.behaviour - logp), **corrected.measures}
        losses = corrected.weigh(losses)
        if batch.entropy is not None:
            bonus = self.entropy_coefficient * batch.entropy
            losses, measures = losses - bonus, {**measures, "entropy_bonus": bonus}
        detached = {name: column.detach() for name, column in measures.items()}
        return self.kl.add_kl_loss(TokenLosses(losses=losses, measures=detached), batch, logp)


class ClippedPolicy(PolicyGradient):
    """Base of algorithms with the clipped token ratio of PPO, times the behaviour weight."""

    clip: PositiveFloat = 0.2
    """ε of PPO: the token ratio is clipped to [1 - clip, 1 + clip], or [1 - clip, 1 + clip_higher]."""
    clip_higher: PositiveFloat | None = None
    """Upper bound of the ratio, minus 1 (arXiv:2503.14476, equation 10); `clip` if not set."""
    dual_clip: Annotated[float, msgspec.Meta(gt=1)] | None = None
    """Upper bound of the loss of a token with negative advantage, in multiples of |A| (arXiv:1912.09729); unbounded if
    not set."""
    correction: Correction = Correction()

    # `Gspo` needs the sequences
    def ratios(self, batch: Batch, logp: Tensor, corrected: Corrected) -> Tensor:  # noqa: ARG002
        """Returns the ratio of each token to its anchor: `[tokens]` with gradient."""
        return ratio(logp, corrected.anchor)

    def surrogate(self, batch: Batch, logp: Tensor, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the clipped surrogate."""
        return clipped_surrogate(
            self.ratios(batch, logp, corrected), batch.advantages, self.clip, self.clip_higher, self.dual_clip
        )
