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
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from areal_actors.core.config import PositiveFloat, PositiveInt
from areal_actors.training.algorithms.base import INITIAL, Advantages, Algorithm, Batch, Need, StepTokens, TokenLosses
from areal_actors.training.algorithms.groups import sum_by
from areal_actors.training.algorithms.pairs import PAIR, group_size_problems, negative_log_sigmoid, pair_accuracy, pair_sums, row_weights
from areal_actors.training.algorithms.pieces import call_shares

if TYPE_CHECKING:
    from torch import Tensor


class Dpo(Algorithm, tag="dpo"):
    """`[algorithm] name = "dpo"`."""

    learns_from: ClassVar[Literal["episodes", "examples"]] = "examples"
    whole_groups: ClassVar[bool] = True

    group_size: PositiveInt = PAIR
    """The two answers of a pair."""
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
    def models(self) -> Mapping[Literal["reference", "teacher"], str]:
        """The reference."""
        return {"reference": self.reference}

    @property
    def recomputes_proximal(self) -> bool:
        """False: nothing was sampled."""
        return False

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yields the problems of the settings; see `Algorithm.problems`."""
        yield from group_size_problems(self.group_size)
        if self.variant == "ipo" and self.label_smoothing:
            yield ("label_smoothing",), f'found {self.label_smoothing:g}, which variant = "ipo" does not use; leave it out'

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns weights that turn measures into means over pairs."""
        return row_weights(step)

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weights of a mean over pairs."""
        return call_shares("seq_mean", tokens, samples, length=1)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns the loss of the pair at each of its tokens: float64 `[tokens]`."""
        assert batch.reference is not None
        log_ratios = logp.double() - batch.reference
        chosen, rejected = pair_sums(log_ratios, batch)
        if self.variant == "ipo":
            lengths = sum_by(log_ratios.new_ones(len(log_ratios)), batch.rows)[batch.rows]
            mean_chosen, mean_rejected = pair_sums(log_ratios / lengths, batch)
            losses = (mean_chosen - mean_rejected - 1 / (2 * self.beta)).square()
        else:
            margin = self.beta * (chosen - rejected)
            losses = (1 - self.label_smoothing) * negative_log_sigmoid(margin) + self.label_smoothing * negative_log_sigmoid(-margin)
        measures = {
            "accuracy": pair_accuracy(chosen, rejected),
            "margin": self.beta * (chosen - rejected),
            "chosen_reward": self.beta * chosen,
            "rejected_reward": self.beta * rejected,
        }
        return TokenLosses(losses=losses, measures={name: column.detach() * batch.advantages for name, column in measures.items()})
