"""What an algorithm is: a table of the recipe that knows how rewards become advantages and tokens become a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from areal_actors.algorithms.pieces import row_shares
from areal_actors.config import Config, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The trained tokens of one micro-batch, each column `[tokens]`, in the order of their rows."""

    rows: Tensor
    """int64: the row within the step that each token belongs to; tokens of a row are neighbours."""
    advantages: Tensor
    """float32."""
    behaviour: Tensor
    """float32: log-probability under the weights that sampled the token."""
    proximal: Tensor
    """float32, no gradient: log-probability under the weights that the step began with."""


class TokenLosses(msgspec.Struct, frozen=True, kw_only=True):
    """What a loss says of each token."""

    losses: Tensor
    """`[tokens]`, with gradient."""
    measures: dict[str, Tensor] = {}
    """`[tokens]` each, without gradient: reported as the mean over trained tokens, or as the maximum if named `…_max`."""


class Algorithm(Config, tag_field="name"):
    """Base of all algorithms. One that needs nothing else overrides `advantages` and `loss`."""

    group_size: PositiveInt = 8
    """Episodes per task, compared with each other."""
    minibatches: PositiveInt = 1
    """Optimizer updates per step, each on its share of the step's groups."""

    def advantages(self, rewards: Tensor, groups: Tensor) -> Tensor:
        """Advantage of each row over the whole step: rewards float64 `[rows]`, groups int64 `[rows]` → float64 `[rows]`."""
        raise NotImplementedError

    def shares(self, tokens: Tensor) -> Tensor:
        """What each token of a row counts in the loss of one update: trained tokens float64 `[rows]` → float64 `[rows]`.

        The default is the mean over all trained tokens.
        """
        return row_shares("token", tokens, length=1)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Loss of each token: log-probabilities under the current weights, float32 `[tokens]` with gradient → `[tokens]`."""
        raise NotImplementedError
