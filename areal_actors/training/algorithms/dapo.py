"""Decoupled clip and dynamic sampling policy optimization (DAPO; arXiv:2503.14476).

GRPO's advantage, clip-higher (section 3.1, equation 10), the mean over all tokens (section 3.3, equation 12), and a
penalty for overlong answers (section 3.4, equation 13). Dynamic sampling (section 3.2), which drops groups whose
rewards are all equal, is done by the batcher: `[batcher] dynamic_sampling = true`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from areal_actors.core.config import Config, NonNegativeFloat, PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import Advantages, Problem, StepTokens
from areal_actors.training.algorithms.groups import sum_by
from areal_actors.training.algorithms.policy_gradient import ClippedPolicy
from areal_actors.training.algorithms.shaping import is_truncated

if TYPE_CHECKING:
    from torch import Tensor


class Overlong(Config):
    """`[algorithm.overlong]`: soft overlong punishment (equation 13), applied before reward shaping."""

    longest: PositiveInt
    """Maximum number of sampled tokens of an episode: the paper's L_max; `sampling.max_tokens` if an episode is one
    answer."""
    buffer: PositiveInt
    """Number of tokens before `longest` over which the penalty grows from 0 to `factor`: the paper's L_cache."""
    factor: NonNegativeFloat = 1.0
    """Maximum penalty."""

    def penalties(self, step: StepTokens) -> Tensor:
        """Returns the penalty of each sample.

        float64 `[samples]`, 0 to `factor`; `factor` if its last call was truncated.
        """
        over = sum_by(step.sampled.to(step.rewards.dtype), step.samples) - (self.longest - self.buffer)
        return self.factor * (over / self.buffer).clamp(0.0, 1.0).masked_fill(is_truncated(step), 1.0)


class Dapo(ClippedPolicy, tag="dapo"):
    """`[algorithm] name = "dapo"`.

    Advantage: reward less overlong penalty, above the group's mean, over the group's standard deviation
    Surrogate: clipped token ratio, wider upwards, × behaviour weight
    Filter: groups without signal (`[batcher] dynamic_sampling = true`)
    AReaL: `eps_clip_higher`, `overlong_reward_penalty` (not capped there), `dynamic_bs` with a filter
    """

    clip: PositiveFloat = 0.2
    """Lower bound of the token ratio: 1 - clip."""
    clip_higher: PositiveFloat = 0.28
    """Upper bound of the token ratio: 1 + clip_higher."""
    overlong: Overlong | None = None
    """No penalty if not set, because lengths depend on the task; the paper uses 20480 and 4096."""
    normalize_advantages: bool = False
    """Normalize advantages again, over all episodes of the step."""

    def problems(self) -> Iterator[Problem]:
        """Yields also a buffer above `longest`."""
        yield from super().problems()
        if self.overlong is not None and self.overlong.buffer > self.overlong.longest:
            longest = self.overlong.longest
            yield (
                ("overlong", "buffer"),
                f"found {self.overlong.buffer}, above `longest` = {longest}; write at most {longest}",
            )

        if self.overlong is not None and self.reward_normalization == "separate":
            yield (
                ("overlong",),
                "found a table, whose penalty would be normalized like a reward; leave it out, and reward `length`",
            )

    def advantages(self, step: StepTokens) -> Advantages:
        """Subtracts penalties and normalizes rewards within their group."""
        if self.overlong is None:
            return super().advantages(step)
        penalties = self.overlong.penalties(step)
        advantages = super().advantages(msgspec.structs.replace(step, rewards=step.rewards - penalties[step.samples]))
        metrics = {**advantages.metrics, "overlong_penalty_mean": float(penalties.mean())}
        return msgspec.structs.replace(advantages, metrics=metrics)
