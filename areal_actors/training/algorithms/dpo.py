"""DPO: learn from preference pairs, without a reward model and without sampling.

With Δ the log-ratio of the chosen answer minus that of the rejected one, each summed over the tokens of the answer,

    r(answer) = β Σ (logp - reference)                  implicit reward of the policy (arXiv:2305.18290, equation 5)
    sigmoid:  -log σ(β Δ)                               equation 7
    ipo:      (Δ̄ - 1 / 2β)²                             arXiv:2310.12036, equation 17, Δ̄ of means over tokens

`label_smoothing` ε assumes that a share ε of the preferences is flipped (conservative DPO):
-(1 - ε) log σ(β Δ) - ε log σ(-β Δ). The reference is by default the model that the run begins with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from areal_actors.core.config import PositiveFloat
from areal_actors.training.algorithms.base import INITIAL, Batch, FrozenModel, Need, Problem, TokenLosses
from areal_actors.training.algorithms.groups import sum_by
from areal_actors.training.algorithms.pairs import PairAlgorithm, negative_log_sigmoid, pair_losses, pair_sums

if TYPE_CHECKING:
    from torch import Tensor


class Dpo(PairAlgorithm, tag="dpo"):
    """`[algorithm] name = "dpo"`."""

    beta: PositiveFloat = 0.1
    """β: strength of the penalty for moving away from the reference."""
    variant: Literal["sigmoid", "ipo"] = "sigmoid"
    """Loss of a pair; `ipo` has a target margin beyond which it no longer pushes the answers apart."""
    label_smoothing: Annotated[float, msgspec.Meta(ge=0, lt=0.5)] = 0.0
    """Assumed share of flipped preferences; only for `sigmoid`."""
    reference: str = INITIAL
    """`initial` (the model that the run begins with), a folder, or a hub id."""

    @property
    def needs(self) -> frozenset[Need]:
        """Log-probabilities under the reference."""
        return frozenset({"reference"})

    @property
    def models(self) -> Mapping[FrozenModel, str]:
        """The reference."""
        return {"reference": self.reference}

    def problems(self) -> Iterator[Problem]:
        """Yields also label smoothing without an effect."""
        yield from super().problems()
        if self.variant == "ipo" and self.label_smoothing:
            yield (
                ("label_smoothing",),
                f'found {self.label_smoothing:g}, which variant = "ipo" does not use; leave it out',
            )

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the loss of the pair at each of its tokens: float64 `[tokens]`."""
        assert batch.reference is not None
        log_ratios = logp.double() - batch.reference
        chosen, rejected = pair_sums(log_ratios, batch)
        if self.variant == "ipo":
            lengths = sum_by(log_ratios.new_ones(len(log_ratios)), batch.sequences)[batch.sequences]
            mean_chosen, mean_rejected = pair_sums(log_ratios / lengths, batch)
            losses = (mean_chosen - mean_rejected - 1 / (2 * self.beta)).square()
        else:
            margin = self.beta * (chosen - rejected)
            losses = (1 - self.label_smoothing) * negative_log_sigmoid(
                margin
            ) + self.label_smoothing * negative_log_sigmoid(-margin)
        return pair_losses(losses, chosen, rejected, batch, "reward", self.beta)
