"""A second set of weights beside the served one: its publication, its answers beside, and the decision about it."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from areal_actors.core.candidate_settings import CandidateMode
from areal_actors.core.values import Interaction, Value, WeightsLocation
from areal_bus.message import Event, Reply, Request

Decision = Literal["promoted", "rolled back", "withdrawn"]
"""`promoted`: new sessions have its weights; `rolled back`: none has; `withdrawn`: the recipe has another, or none."""


class CandidatePublished(Event):
    """Weights that answer a share of the new sessions from here on, and how they are compared with the served ones."""

    subject: ClassVar[str] = "candidate.published"
    weight_version: int
    """Version of the candidate, which no other weights of the log have."""
    location: WeightsLocation
    """Location of the weights."""
    serving_version: int
    """Version of the served weights."""
    mode: CandidateMode = "canary"
    """As `gateway.candidate.mode`."""
    share: float = 0.1
    """Share of the new sessions."""
    least_difference: float = 0.0
    """Difference of the mean rewards above which the candidate is as good."""
    significance: float = 0.05
    """Largest probability of a false promotion, and of a false rollback."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest reward."""
    least_sessions: int = 0
    """Rewarded sessions of each that a decision needs."""
    limits: dict[str, float] = {}
    """Largest difference of each limited guard metric: `length`, `truncated`, `tool_errors`."""
    max_tokens: int = 1
    """Length of an answer, in tokens, that counts as 1 in the metric `length`."""

    def sentence(self) -> str:
        """Returns how the candidate is compared."""
        beside = "answers beside" if self.mode == "shadow" else "answers"
        place = f"version {self.weight_version} ({self.location.folder})"
        return f"{self.mode}: {place} {beside} {self.share:.0%} of the new sessions, against {self.serving_version}"


class ComparedMetric(Value):
    """A mean of the candidate's sessions minus that of the served ones, with limits that hold at all times."""

    name: str
    """`reward`, or a guard metric."""
    candidate: float
    """Mean of the candidate's sessions."""
    serving: float
    """Mean of the served version's sessions."""
    difference: float
    """Mean difference of pairs of both."""
    low: float
    """Lower limit of the difference."""
    high: float
    """Upper limit of the difference."""
    pairs: int
    """Number of pairs."""


class CandidateDecided(Event):
    """The candidate was promoted, rolled back or withdrawn; open sessions keep the weights that they have."""

    subject: ClassVar[str] = "candidate.decided"
    weight_version: int
    """Version of the candidate."""
    serving_version: int
    """Version that it was compared with."""
    decision: Decision
    """Outcome."""
    reason: str
    """Ground of the decision, as a sentence."""
    by: Literal["test", "operator", "recipe"] = "test"
    """Origin: the sequential test, `areal-actors serve promote`, or a recipe that no longer has it."""
    metrics: tuple[ComparedMetric, ...] = ()
    """Figures at the decision; the log before this event gives the same."""
    sessions: tuple[int, int] = (0, 0)
    """Rewarded sessions of the candidate and of the served version."""

    def sentence(self) -> str:
        """Returns the decision and its ground."""
        return f"candidate version {self.weight_version} is {self.decision}: {self.reason}"


class ShadowAnswered(Event):
    """The candidate has answered a call of a session beside the served version; no user saw it."""

    subject: ClassVar[str] = "shadow.answered"
    session: str
    interaction: str
    """Call of the session that had the same prompt."""
    weight_version: int
    """Version of the candidate."""
    answer: Interaction
    """The candidate's answer, which is no call of the session."""
    served_tokens: int
    """Length of the session's own answer."""
    served_truncated: bool = False
    """True if that was cut at its limit."""
    served_tool_error: bool = False
    """True if that had a faulty tool call."""

    def pack(self) -> ShadowAnswered:
        """Returns the event with token columns as they are sent."""
        return msgspec.structs.replace(self, answer=self.answer.pack())


class ShadowEnded(Reply):
    """The candidate has answered, or could not."""

    subject: ClassVar[str] = "shadow.ended"
    error: str = ""


class AnswerInShadow(Request[ShadowEnded]):
    """Have the candidate answer a completed call of a session beside the served version."""

    subject: ClassVar[str] = "shadow.answer"
    reply: ClassVar[type[Reply]] = ShadowEnded
    session: str
    interaction: str
    """Completed call of the session."""
