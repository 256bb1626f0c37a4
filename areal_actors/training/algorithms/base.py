"""Base of algorithms: a table of the recipe that computes advantages from rewards and a loss from tokens.

A *trained token* is a sampled token that the loss may use. Columns "per token" have one entry for each trained token
and none for prompts, padding and masked tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from areal_actors.core.config import Config, NonNegativeFloat, PositiveFloat, PositiveInt
from areal_actors.core.errors import EngineError
from areal_actors.training.algorithms.pieces import call_shares

if TYPE_CHECKING:
    from torch import Tensor

Need = Literal["proximal", "reference", "values", "last_values", "teacher", "rescored"]
"""A column that costs an extra forward pass before advantages are computed."""

FrozenModel = Literal["reference", "teacher"]
ExampleKind = Literal["demonstrations", "pairs", "sessions"]
Problem = tuple[tuple[str, ...], str]
"""A contradiction in a table: the key, and a message of what was found and what to write."""

INITIAL = "initial"
"""The model that the run began with; an alternative to a folder or a hub id."""


class NamedColumn(msgspec.Struct, frozen=True):
    """One of the rewards whose weighted sum is the reward of the calls of a step."""

    name: str
    weight: float
    rewards: Tensor
    """float64 `[calls]`: R_k(call), without its weight; NaN for episodes without such a reward."""


class CreditPlace(msgspec.Struct, frozen=True):
    """A place of trained tokens that the reward of a span credits."""

    span: int
    """Index of the span among those of the step."""
    before: int
    """First trained token of the call, counted in the step."""
    start: int
    """First trained token of the place."""
    end: int
    """End of its trained tokens, exclusive."""
    share: float
    """Factor of the credit."""
    is_carried: bool
    """True at calls before the one of the span."""


class SpanColumns(msgspec.Struct, frozen=True):
    """Rewards of spans of completions; each counts once, at however many places it is."""

    names: tuple[str, ...]
    """Name of each span."""
    rewards: Tensor
    """float64 `[spans]`."""
    groups: Tensor
    """int64 `[spans]`: spans with one number are compared: those of one group and name."""
    places: tuple[CreditPlace, ...]


class StepTokens(msgspec.Struct, frozen=True, kw_only=True):
    """All trained tokens of a step, ordered by sequence and position, and all calls of its sequences.

    A *call* is a model call that is trained in one of the sequences. A *sample* counts once in the statistics of a
    group: an episode with all of its calls, across sequences (see `TrainingSequence` and `SequenceCall`). Calls and
    samples without trained tokens are included: their rewards count in the statistics.
    """

    sequences: Tensor
    """int64 `[tokens]`: sequence of each token, nondecreasing; sequences without trained tokens do not occur."""
    calls: Tensor
    """int64 `[tokens]`: call of each token, nondecreasing."""
    rewards: Tensor
    """float64 `[calls]`: R(call)."""
    call_sequences: Tensor
    """int64 `[calls]`: sequence that trains the call, nondecreasing."""
    samples: Tensor
    """int64 `[calls]`: sample of each call; every index up to the largest occurs."""
    groups: Tensor
    """int64 `[samples]`: group of each sample."""
    sampled: Tensor
    """int64 `[calls]`: sampled tokens of the call, trained or not."""
    truncated: Tensor
    """bool `[calls]`: True if the call ended at the length limit."""
    behaviour: Tensor
    """float32 `[tokens]`: log-probability under the weights that sampled the token."""
    versions: Tensor
    """int64 `[tokens]`: version of those weights."""
    weight_version: int
    """Version of the weights at the start of the step."""
    proximal: Tensor | None = None
    """float32 `[tokens]`: log-probability under the weights at the start of the step. This and the columns below are
    set only if the algorithm needs them."""
    reference: Tensor | None = None
    """float32 `[tokens]`: log-probability under the reference model."""
    values: Tensor | None = None
    """float32 `[tokens]`: value predicted by the critic just before the token."""
    last_values: Tensor | None = None
    """float32 `[sequences]`: critic's value after the last token of a sequence whose episode was truncated there; 0 for
    others."""
    teacher: Tensor | None = None
    """float32 `[tokens]`: log-probability under the teacher."""
    rescored: Tensor | None = None
    """float32 `[tokens]`: the trainer's own log-probability under the weight version that sampled the token; NaN if
    unknown. For tokens of the current version it equals `proximal`."""
    named_rewards: tuple[NamedColumn, ...] = ()
    """Rewards of which `rewards` is the weighted sum; empty if the recipe names none."""
    baselines: Tensor | None = None
    """float64 `[calls]`: role-wise baseline of each call; None if the batch has none for some of them."""
    spans: SpanColumns | None = None
    """Rewards of spans of completions; None if no episode of the step has one."""


class Advantages(msgspec.Struct, frozen=True, kw_only=True):
    """Advantages and returns of the tokens of a step."""

    tokens: Tensor
    """float32 `[tokens]`."""
    returns: Tensor | None = None
    """float32 `[tokens]`: targets of the critic."""
    kept: Tensor | None = None
    """bool `[tokens]`: tokens that the loss uses; None means all."""
    metrics: dict[str, float] = {}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Trained (and kept) tokens of one micro-batch.

    Sequences are complete, in any order; tokens of a sequence are contiguous.
    """

    sequences: Tensor
    """int64 `[tokens]`: index of the token's sequence within the step."""
    groups: Tensor
    """int64 `[tokens]`: group of the token's episode."""
    rewards: Tensor
    """float32 `[tokens]`: R of the token's call."""
    advantages: Tensor
    """float32 `[tokens]`."""
    behaviour: Tensor
    """float32 `[tokens]`: log-probability under the weights that sampled the token."""
    versions: Tensor
    """int64 `[tokens]`: version of those weights."""
    weight_version: int
    """Version of the weights at the start of the step."""
    proximal: Tensor
    """float32 `[tokens]`, no gradient: log-probability under the weights at the start of the step."""
    proximal_exact: bool = False
    """True if `proximal` holds exactly these log-probabilities: recomputed, or from the forward pass of the first
    update of the step. False if the algorithm skips that extra pass (`Algorithm.recomputes_proximal`)."""
    reference: Tensor | None = None
    """float32 `[tokens]`; this and the columns below as in `StepTokens` and `Advantages`."""
    teacher: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    rescored: Tensor | None = None
    """float32 `[tokens]`: as in `StepTokens`, tokens of the current version included."""
    entropy: Tensor | None = None
    """float32 `[tokens]` with gradient: entropy of the distribution from which the token was sampled, at the sampling
    temperature; set if the algorithm uses it (`Algorithm.rewards_entropy`)."""


class TokenLosses(msgspec.Struct, frozen=True, kw_only=True):
    """Loss and measures of each token."""

    losses: Tensor
    """`[tokens]`, with gradient."""
    measures: dict[str, Tensor] = {}
    """`[tokens]` each, without gradient: reported as mean over trained tokens, or as maximum if named `…_max`."""


def refuse_unused_spans(algorithm: Algorithm, step: StepTokens) -> None:
    """Refuse rewards of spans that an algorithm would ignore.

    Raises:
        EngineError: there are some, and it has no use for them.
    """
    if step.spans is not None and not algorithm.takes_spans:
        raise EngineError(
            f"the reward returned rewards of spans ({', '.join(sorted(set(step.spans.names)))}), which"
            f" {type(algorithm).__name__} does not use; return none, or take an algorithm such as grpo"
        )


class CriticSettings(Config):
    """`[algorithm.critic]`: a second model that predicts returns."""

    model: str = INITIAL
    """`initial` (the model that the run begins with), a folder, or a hub id: the backbone of a new scalar head."""
    lr: PositiveFloat = 8e-4
    """Learning rate of the critic's own optimizer; the rest of `[trainer.optimizer]` applies to both. Unstated, 1e-5
    with a pretrained model."""
    clip: NonNegativeFloat = 0.5
    """Maximum change of a value in one step; 0 means unbounded."""


def require(column: Tensor | None, need: Need) -> Tensor:
    """Returns a column that the algorithm needs.

    Raises:
        EngineError: the trainer did not compute it.
    """
    if column is None:
        raise EngineError(f"the trainer did not compute the column `{need}`, which this algorithm lists in `needs`")
    return column


class Component(Config):
    """A nested table of an algorithm, such as `kl`, whose needs, models and problems are added to the algorithm's."""

    @property
    def needs(self) -> frozenset[Need]:
        """As `Algorithm.needs`."""
        return frozenset()

    @property
    def models(self) -> Mapping[FrozenModel, str]:
        """As `Algorithm.models`."""
        return {}

    def problems(self) -> Iterator[Problem]:
        """As `Algorithm.problems`."""
        yield from ()


class Algorithm(Config, tag_field="name"):
    """Base of all algorithms. A minimal one overrides `advantages` and `loss`."""

    head: ClassVar[Literal["tokens", "value"]] = "tokens"
    """`value`: the model has a scalar head, and `loss` receives its values at the scored positions instead of
    log-probabilities."""
    whole_groups: ClassVar[bool] = False
    """True if the loss compares the sequences of a group, so that they must be in one micro-batch."""
    learns_from: ClassVar[Literal["episodes", "examples"]] = "episodes"
    example_kind: ClassVar[ExampleKind] = "demonstrations"
    """Kind of examples that it learns from, if it learns from examples."""

    group_size: PositiveInt = 8
    """Episodes per task, which form a group."""
    minibatches: PositiveInt = 1
    """Optimizer updates per step, each on its share of the step's groups."""

    @property
    def needs(self) -> frozenset[Need]:
        """Optional columns of `StepTokens` that `advantages` or `loss` uses."""
        return frozenset[Need]().union(*(component.needs for component in self._components()))

    @property
    def recomputes_proximal(self) -> bool:
        """True if `loss` uses `Batch.proximal`; examples that no policy sampled have none.

        If False, the trainer skips the forward pass that several updates per step would cost, and fills the column
        arbitrarily.
        """
        return self.learns_from_samples

    @property
    def learns_from_samples(self) -> bool:
        """True if its sequences were sampled, with log-probabilities and versions: episodes, or recorded sessions."""
        return self.learns_from == "episodes" or self.example_kind == "sessions"

    @property
    def rewards_entropy(self) -> bool:
        """True if `loss` uses `Batch.entropy`."""
        return False

    @property
    def takes_spans(self) -> bool:
        """True if `advantages` uses `StepTokens.spans`; if False, episodes with such rewards end the run by name."""
        return False

    @property
    def models(self) -> Mapping[FrozenModel, str]:
        """Frozen models by name, for the entries of `needs`: `initial`, a folder, or a hub id."""
        return {name: folder for component in self._components() for name, folder in component.models.items()}

    @property
    def critic(self) -> CriticSettings | None:
        """Critic trained with the policy; an algorithm with a critic has a table of this name."""
        return None

    @property
    def role_field(self) -> str:
        """Field of a task with the role whose baseline its episodes have; empty without one."""
        return ""

    @property
    def baseline_decay(self) -> float | None:
        """Decay of role-wise baselines, which are in `StepTokens.baselines`; None without them."""
        return None

    def resolve(self) -> Algorithm:
        """Returns the algorithm that trains: this one, or the one of the class that it names."""
        return self

    def problems(self) -> Iterator[Problem]:
        """Yields contradictions in this table."""
        for component in self._components():
            yield from component.problems()

    def _components(self) -> Iterator[Component]:
        fields = (getattr(self, name) for name in self.__struct_fields__)
        return (field for field in fields if isinstance(field, Component))

    def advantages(self, step: StepTokens) -> Advantages:
        """Returns the advantage of each token of the step."""
        raise NotImplementedError

    def shares(self, tokens: Tensor, samples: Tensor) -> Tensor:
        """Returns the weight of each kept token of a call in the loss of one update; by default the mean over tokens.

        Args:
            tokens: float64 `[calls]`, number of kept tokens of each call in the update.
            samples: int64 `[calls]`, the sample of each of these calls.

        Returns:
            float64 `[calls]`.
        """
        return call_shares("token_mean", tokens, samples, length=1)

    def loss(self, batch: Batch, logp: Tensor) -> TokenLosses:
        """Returns token losses, given log-probabilities under the current weights.

        float32 `[tokens]` with gradient → `[tokens]`.
        """
        raise NotImplementedError

    def critic_loss(self, batch: Batch, values: Tensor) -> TokenLosses:
        """Returns token losses of the critic, given its values: float32 `[tokens]` with gradient → `[tokens]`."""
        raise NotImplementedError
