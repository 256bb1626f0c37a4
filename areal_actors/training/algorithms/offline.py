"""Offline policy gradient: learn from recorded sessions, each with one answer to its prompt, without sampling.

There are no groups. The baseline b of a call is in the data: it was fitted to the rewards of other sessions
(`learn/baselines.py`), so that the gradient has no bias from it. With the log-probabilities q that were recorded when
the tokens were sampled, and p of the current weights,

    A = (R - b) / rms(R - b over the step)
    L = max(-A u, -A clip(u, 1 - clip, 1 + clip)),   u = exp(log p - log q)

which is PPO's clipped surrogate (arXiv:1707.06347, equation 7) with the policy that was served as the old one: an
importance-weighted policy gradient whose weights are truncated, however many passes are made over the log. The bounds
are wider than those of a run that samples again after each step.

Beside the rewards a step may have

- edited answers, demonstrations without recorded log-probabilities: their mean negative log-probability;
- preferences, pairs of answers to one prompt: DPO (arXiv:2305.18290, equation 7) with the recorded log-probabilities as
  the reference, so that no other model is run.

Every judgement has the same weight, however many tokens it has: a mean over those of its answer, times
`edit_weight` or `preference_weight`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from areal_actors.core.config import NonNegativeFloat, PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Batch, ExampleKind, Problem, StepTokens, TokenLosses
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import STD_FLOOR, mean_by, sum_by
from areal_actors.training.algorithms.pairs import PAIR, negative_log_sigmoid, pair_sums
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy

if TYPE_CHECKING:
    from torch import Tensor

UNSUPPORTED = (
    (("group_size",), 1, "recorded sessions have one answer to a prompt"),
    (("reward_normalization",), "sum", "sessions have one reward"),
    (("minibatches",), 1, "pairs and baselines need no smaller updates"),
)


class Offline(ClippedPolicy, tag="offline"):
    """`[algorithm] name = "offline"`.

    Advantage: reward above a baseline of similar sessions, over its root mean square in the step
    Surrogate: clipped token ratio to the recorded log-probabilities
    """

    learns_from: ClassVar[Literal["episodes", "examples"]] = "examples"
    example_kind: ClassVar[ExampleKind] = "sessions"
    whole_groups: ClassVar[bool] = True

    group_size: PositiveInt = 1
    """Must be 1: recorded sessions have one answer to a prompt."""
    clip: PositiveFloat = 0.9
    """Lower bound of a token's ratio to its recorded probability is 1 - clip; 0.1 by default."""
    clip_higher: PositiveFloat | None = 4.0
    """Upper bound of the ratio, minus 1: a token that is already five times as likely as when it was sampled has no
    gradient from a good reward; `clip` if not set."""
    correction: Correction = Correction(decoupled=False)
    edit_weight: NonNegativeFloat = 1.0
    """Weight of an edited answer, in multiples of a reward; 0 leaves edits out."""
    preference_weight: NonNegativeFloat = 1.0
    """Weight of each answer of a preferred pair; 0 leaves preferences out."""
    preference_beta: PositiveFloat = 0.1
    """β of DPO: strength of the penalty for moving away from the recorded log-probabilities."""

    @property
    def compares_groups(self) -> bool:
        """False: the baseline is that of other sessions."""
        return False

    @property
    def takes_spans(self) -> bool:
        """False: recorded sessions have rewards of calls."""
        return False

    def problems(self) -> Iterator[Problem]:
        """Yields also settings that need groups, or the trainer's own log-probabilities of older versions."""
        for (name,), only, reason in UNSUPPORTED:
            if (value := getattr(self, name)) != only:
                yield (name,), f"found {value!r}, but {reason}; leave it out"
        if self.correction.decoupled and self.correction.proximal != "recomputed":
            yield (
                ("correction", "proximal"),
                (
                    f'found "{self.correction.proximal}", but versions of a recorded session are those of its server;'
                    " leave it out"
                ),
            )
        if self.correction.mismatch.importance_sampling != "off":
            yield (
                ("correction", "mismatch", "importance_sampling"),
                (
                    f'found "{self.correction.mismatch.importance_sampling}", but the trainer has no copies of the'
                    " weights that were served; leave it out"
                ),
            )
        yield from super().problems()

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns advantages of rewards; of edits and pairs the weight that makes a mean over their answer.

        Calls without a recorded token (edits) and those of a group of two (pairs) have no reward.
        """
        tokens = step.behaviour.new_ones(len(step.behaviour)).double()
        samples = step.samples[step.calls]
        is_pair = sum_by(step.groups.new_ones(len(step.groups)), step.groups)[step.groups][samples] == PAIR
        is_edit = step.versions < 0
        is_reward = ~is_pair & ~is_edit
        baselines = 0.0 if step.baselines is None else step.baselines
        relative = (self.shaping.apply(step.rewards) - baselines)[step.calls].masked_fill(~is_reward, 0.0)
        by_call = mean_by(relative, step.calls, len(step.rewards))
        counted = sum_by(is_reward.to(tokens.dtype), step.calls, len(step.rewards)) > 0
        unit = float((by_call.square().sum() / max(float(counted.sum()), 1.0)).sqrt()) + STD_FLOOR
        advantages = self.finalize(step, relative / unit)
        # a mean over an answer, of all answers: whatever `loss_aggregation` gives a token
        length = sum_by(tokens, step.sequences, int(step.sequences.max()) + 1)[step.sequences]
        answers = float((sum_by(tokens, step.sequences) > 0).sum())
        weight = (len(tokens) / (length * answers)).to(step.behaviour.dtype)
        weighted = advantages.tokens.where(is_reward, weight)
        judged = {
            "rewarded_frac": float(is_reward.double().mean()),
            "edited_frac": float(is_edit.double().mean()),
            "preferred_frac": float(is_pair.double().mean()),
            "baseline_residual": unit,
        }
        return Advantages(tokens=weighted, kept=advantages.kept, metrics={**advantages.metrics, **judged})

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the clipped surrogate of rewarded tokens, and the losses of edits and pairs at theirs."""
        is_edit = batch.versions < 0
        is_pair = _sequences_of_group(batch) == PAIR
        policy = super().loss(_with_own_behaviour(batch, is_edit, logp.detach()), logp)
        chosen, rejected = pair_sums(logp - batch.behaviour, batch)
        pairs = negative_log_sigmoid(self.preference_beta * (chosen - rejected)).to(logp.dtype)
        losses = policy.losses.where(~is_edit, -self.edit_weight * batch.advantages * logp)
        losses = losses.where(~is_pair, self.preference_weight * batch.advantages * pairs)
        return TokenLosses(losses=losses, measures=policy.measures)


def _sequences_of_group(batch: Batch) -> Tensor:
    """Returns the number of sequences of each token's group in the batch: int64 `[tokens]`."""
    is_first = batch.sequences.new_ones(len(batch.sequences))
    is_first[1:] = (batch.sequences[1:] != batch.sequences[:-1]).to(is_first.dtype)  # those of a sequence are together
    return sum_by(is_first, batch.groups)[batch.groups]


def _with_own_behaviour(batch: Batch, tokens: Tensor, logp: Tensor) -> Batch:
    """Returns the batch with ratios of 1 at some tokens, which no policy sampled: bool `[tokens]`."""
    return msgspec.structs.replace(
        batch, behaviour=logp.where(tokens, batch.behaviour), proximal=logp.where(tokens, batch.proximal)
    )
