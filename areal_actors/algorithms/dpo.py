"""DPO: learn from which of two answers is preferred, without a reward model and without sampling.

With Δ the log-ratio of the preferred answer minus that of the other, log-ratios being summed over the answer's tokens,

    r(answer) = β Σ (logp - reference)                  the reward that the policy implies (arXiv:2305.18290, equation 5)
    sigmoid:  -log σ(β Δ)                               equation 7
    ipo:      (Δ̄ - 1 / 2β)²                             arXiv:2310.12036, equation 17, Δ̄ of means over tokens

`label_smoothing` ε takes one preference in 1/ε to be the wrong way round (conservative DPO):
-(1 - ε) log σ(β Δ) - ε log σ(-β Δ). The reference is the model that the run begins with, unless another is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from areal_actors.algorithms.base import INITIAL, Advantages, Algorithm, Batch, Need, StepTokens, TokenLosses
from areal_actors.algorithms.groups import sum_by
from areal_actors.algorithms.pairs import PAIR, both, group_size_problems, preferred, row_weights, unlikelihood
from areal_actors.algorithms.pieces import call_shares
from areal_actors.config import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Dpo(Algorithm, tag="dpo"):
    """`[algorithm] name = "dpo"`."""

    learns_from: ClassVar[Literal["episodes", "examples"]] = "examples"
    whole_groups: ClassVar[bool] = True

    group_size: PositiveInt = PAIR
    """The two answers of a pair."""
    beta: PositiveFloat = 0.1
    """How dear it is to move away from the reference."""
    variant: Literal["sigmoid", "ipo"] = "sigmoid"
    """The loss of a pair; `ipo` stops pushing once the answers are far enough apart."""
    label_smoothing: Annotated[float, msgspec.Meta(ge=0, lt=0.5)] = 0.0
    """Share of preferences taken to be the wrong way round; of `sigmoid` only."""
    reference: str = INITIAL
    """`initial` (the model that the run begins with), a folder, or a hub id."""

    @property
    def needs(self) -> frozenset[Need]:
        """Log-probabilities under the reference."""
        return frozenset({"reference"})

    @property
    def models(self) -> Mapping[Literal["reference", "teacher"], str]:
        """The reference."""
        return {"reference": self.reference}

    @property
    def recomputes_proximal(self) -> bool:
        """Nothing was sampled."""
        return False

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """See `Algorithm.problems`."""
        yield from group_size_problems(self.group_size)
        if self.variant == "ipo" and self.label_smoothing:
            yield ("label_smoothing",), f'found {self.label_smoothing:g}, which variant = "ipo" has no use for; leave it out'

    def advantages(self, step: StepTokens) -> Advantages:
        """Weights that make the measures means over pairs."""
        return row_weights(step)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """The mean over pairs."""
        return call_shares("sequence", tokens, samples, length=1)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """The loss of a pair, at each of its tokens: float64 `[tokens]`."""
        assert batch.reference is not None
        log_ratios = logp.double() - batch.reference
        chosen, rejected = both(log_ratios, batch)
        if self.variant == "ipo":
            lengths = sum_by(log_ratios.new_ones(len(log_ratios)), batch.rows)[batch.rows]
            mean_chosen, mean_rejected = both(log_ratios / lengths, batch)
            losses = (mean_chosen - mean_rejected - 1 / (2 * self.beta)).square()
        else:
            margin = self.beta * (chosen - rejected)
            losses = (1 - self.label_smoothing) * unlikelihood(margin) + self.label_smoothing * unlikelihood(-margin)
        measures = {
            "accuracy": preferred(chosen, rejected),
            "margin": self.beta * (chosen - rejected),
            "chosen_reward": self.beta * chosen,
            "rejected_reward": self.beta * rejected,
        }
        return TokenLosses(losses=losses, measures={name: column.detach() * batch.advantages for name, column in measures.items()})
