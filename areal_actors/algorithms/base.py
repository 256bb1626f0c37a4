"""What an algorithm is: a table of the recipe that knows how rewards become advantages and tokens become a loss.

A *trained token* is a sampled token that the loss may see. Columns "per token" have one entry for each of them and nothing
else: prompts, padding and masked tokens have no place in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from areal_actors.algorithms.pieces import call_shares
from areal_actors.config import Config, NonNegativeFloat, PositiveFloat, PositiveInt
from areal_actors.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

Need = Literal["proximal", "reference", "values", "last_values", "teacher", "rescored"]
"""A column that costs a forward pass of its own before the advantages can be told."""

INITIAL = "initial"
"""Names the model that the run began with, where a folder or a hub id may stand."""


class StepTokens(msgspec.Struct, frozen=True, kw_only=True):
    """All trained tokens of a step (row after row, and within a row position after position), and all calls of its rows.

    A *call* is a model call that is trained in one of the rows; a *sample* is what the statistics of a group count once: an
    episode, with all of its calls in whatever rows (see `Row` and `RowCall`). Calls and samples without trained tokens are
    among them: their rewards count in the statistics.
    """

    rows: Tensor
    """int64 `[tokens]`: the row of each token; never falls, and a row without trained tokens does not occur."""
    calls: Tensor
    """int64 `[tokens]`: the call of each token; never falls."""
    rewards: Tensor
    """float64 `[calls]`: R(call)."""
    call_rows: Tensor
    """int64 `[calls]`: the row that trains the call; never falls."""
    samples: Tensor
    """int64 `[calls]`: the sample of each call; every index up to the largest occurs."""
    groups: Tensor
    """int64 `[samples]`."""
    sampled: Tensor
    """int64 `[calls]`: sampled tokens of the call, trained or not."""
    truncated: Tensor
    """bool `[calls]`: the engine stopped the call by length."""
    behaviour: Tensor
    """float32 `[tokens]`: log-probability under the weights that sampled the token."""
    versions: Tensor
    """int64 `[tokens]`: the version of those weights."""
    weight_version: int
    """Of the weights that the step begins with."""
    proximal: Tensor | None = None
    """float32 `[tokens]`: log-probability under the weights that the step begins with. This and the columns below are there
    when the algorithm needs them."""
    reference: Tensor | None = None
    """float32 `[tokens]`: log-probability under the reference model."""
    values: Tensor | None = None
    """float32 `[tokens]`: what the critic expected just before the token."""
    last_values: Tensor | None = None
    """float32 `[rows]`: what the critic expected after the last token of a row whose episode was cut by length there; 0 for others."""
    teacher: Tensor | None = None
    """float32 `[tokens]`: log-probability under the teacher."""
    rescored: Tensor | None = None
    """float32 `[tokens]`: the trainer's own log-probability under the weight version that sampled the token; NaN where it is not
    known. Of tokens of the current version it is `proximal`."""


class Advantages(msgspec.Struct, frozen=True, kw_only=True):
    """What the tokens of a step were worth."""

    tokens: Tensor
    """float32 `[tokens]`."""
    returns: Tensor | None = None
    """float32 `[tokens]`: what a critic learns to expect."""
    kept: Tensor | None = None
    """bool `[tokens]`: the tokens that the loss sees; None is all."""
    metrics: dict[str, float] = {}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The trained tokens of one micro-batch, or those kept. Rows are whole, in any order; tokens of a row are neighbours."""

    rows: Tensor
    """int64 `[tokens]`: index of the token's row within the step."""
    groups: Tensor
    """int64 `[tokens]`: group of the token's episode."""
    rewards: Tensor
    """float32 `[tokens]`: R of the token's call."""
    advantages: Tensor
    """float32 `[tokens]`."""
    behaviour: Tensor
    """float32 `[tokens]`: log-probability under the weights that sampled the token."""
    versions: Tensor
    """int64 `[tokens]`: the version of those weights."""
    weight_version: int
    """Of the weights that the step began with."""
    proximal: Tensor
    """float32 `[tokens]`, no gradient: log-probability under the weights that the step began with."""
    proximal_exact: bool = False
    """`proximal` holds these very log-probabilities: they were recomputed, or this is the first update of its step, whose own forward
    pass has them. False: they cost a pass that the algorithm spares (`Algorithm.recomputes_proximal`)."""
    reference: Tensor | None = None
    """float32 `[tokens]`; this and the columns below as in `StepTokens` and `Advantages`."""
    teacher: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    rescored: Tensor | None = None
    """float32 `[tokens]`: as in `StepTokens`, tokens of the current version included."""


class TokenLosses(msgspec.Struct, frozen=True, kw_only=True):
    """What a loss says of each token."""

    losses: Tensor
    """`[tokens]`, with gradient."""
    measures: dict[str, Tensor] = {}
    """`[tokens]` each, without gradient: reported as the mean over trained tokens, or as the maximum if named `…_max`."""


class CriticSettings(Config):
    """`[algorithm.critic]`: a second model that learns what to expect."""

    model: str = INITIAL
    """`initial` (the model that the run begins with), a folder, or a hub id: the trunk under a new scalar head."""
    lr: PositiveFloat = 8e-4
    """Of its own optimizer; the rest of `[trainer.optimizer]` holds for both."""
    clip: NonNegativeFloat = 0.5
    """How far a value may move in one step; 0 sets no bound."""


def given(column: Tensor | None, need: Need) -> Tensor:
    """A column that the algorithm needs.

    Raises:
        EngineError: the trainer did not compute it.
    """
    if column is None:
        raise EngineError(f"the trainer gave no column `{need}`, which this algorithm names under `needs`")
    return column


@runtime_checkable
class Part(Protocol):
    """A table within an algorithm's own that has needs of its own, such as `kl`. What it says, the algorithm says."""

    @property
    def needs(self) -> frozenset[Need]: ...  # noqa: D102 - as `Algorithm`'s, like those below

    @property
    def models(self) -> Mapping[Literal["reference", "teacher"], str]: ...  # noqa: D102

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]: ...  # noqa: D102


class Algorithm(Config, tag_field="name"):
    """Base of all algorithms. One that needs nothing else overrides `advantages` and `loss`."""

    head: ClassVar[Literal["tokens", "value"]] = "tokens"
    """`value`: the model has a scalar head, and what `loss` gets as log-probabilities are its values at the scored positions."""
    whole_groups: ClassVar[bool] = False
    """The rows of a group must lie in one micro-batch, because the loss compares them."""
    learns_from: ClassVar[Literal["episodes", "examples"]] = "episodes"

    group_size: PositiveInt = 8
    """Episodes per task, compared with each other."""
    minibatches: PositiveInt = 1
    """Optimizer updates per step, each on its share of the step's groups."""

    @property
    def needs(self) -> frozenset[Need]:
        """Columns of `StepTokens` that `advantages` or `loss` uses and that are not always there."""
        return frozenset[Need]().union(*(part.needs for part in self._parts()))

    @property
    def recomputes_proximal(self) -> bool:
        """Whether `loss` uses `Batch.proximal`.

        If it does not, the trainer saves the forward pass that several updates per step would cost, and gives any column there.
        """
        return True

    @property
    def models(self) -> Mapping[Literal["reference", "teacher"], str]:
        """Frozen models beside the trained one: `initial`, a folder, or a hub id, for each that `needs` names."""
        return {name: folder for part in self._parts() for name, folder in part.models.items()}

    @property
    def critic(self) -> CriticSettings | None:
        """The critic that learns beside the policy; an algorithm that has one has a table of this name."""
        return None

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What in this table contradicts itself: the key within it, and what was found and what to write."""
        for part in self._parts():
            yield from part.problems()

    def _parts(self) -> Iterator[Part]:
        fields = (getattr(self, name) for name in self.__struct_fields__)
        return (field for field in fields if isinstance(field, Part))

    def advantages(self, step: StepTokens) -> Advantages:
        """What each token of the step was worth."""
        raise NotImplementedError

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """What each kept token of a call counts in the loss of one update; the default is the mean over all of them.

        Args:
            tokens: float64 `[calls]`, kept tokens of each call in the rows of the update.
            samples: int64 `[calls]`, the sample of each of these calls.

        Returns:
            float64 `[calls]`.
        """
        return call_shares("token", tokens, samples, length=1)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Loss of each token: log-probabilities under the current weights, float32 `[tokens]` with gradient → `[tokens]`."""
        raise NotImplementedError

    def critic_loss(self, batch: Batch, values: Tensor) -> TokenLosses:
        """Loss of the critic for each token: its values, float32 `[tokens]` with gradient → `[tokens]`."""
        raise NotImplementedError
