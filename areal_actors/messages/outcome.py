"""Messages from sampled tokens to a trajectory: scoring and the end of an episode."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from areal_actors.core.span_rewards import SpanReward
from areal_actors.core.values import EndedBy, Trajectory, Value
from areal_actors.messages.rollout import InteractionRecorded, InteractionsRecorded, RunEpisode
from areal_bus.message import Event, Message, Telemetry, Work

PARTIES = {
    "agent": "agent",
    "timeout": "agent",
    "reward": "environment",
    "environment": "environment",
    "engine": "infrastructure",
    "gateway": "infrastructure",
    "session": "infrastructure",
    "lost": "infrastructure",
}
"""Party at which an abandoned attempt ended, by its reason. An episode that the model ends is scored, not abandoned."""


class AgentReturned(Telemetry):
    """The agent of this session has returned text; the session now waits for its score."""

    subject: ClassVar[str] = "agent.returned"
    session: str


class ScoreEpisode(Work):
    """Compute the reward of the text that the agent returned."""

    subject: ClassVar[str] = "episode.score"
    work: RunEpisode
    session: str
    output: str


class JudgeAnswer(Value):
    """Answer of a judge that a reward follows from; the same question needs no further call."""

    key: str
    """Digest of the judge's model and the question."""
    judge: str
    """Name of the judge."""
    text: str
    """The answer as the model wrote it."""
    calls: int = 1
    """Calls of the model until the answer could be read; 0 if it was known."""
    tokens: int = 0
    """Tokens of prompts and answers of these calls."""
    cost: float = 0.0
    """Price of these calls."""
    seconds: float = 0.0
    """Time until the answer could be read."""


class JudgeCalibrated(Event):
    """A judge was compared with labelled examples before the run."""

    subject: ClassVar[str] = "judge.calibrated"
    judge: str
    """Name of the judge."""
    model: str
    """Name of its model at the server."""
    file: str
    """File of the examples."""
    measure: str
    """Meaning of `agreement`: `accuracy`, `rank correlation`, or `order of pairs`."""
    agreement: float
    """Agreement with the labels; of a correlation from -1, else from 0, to 1."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end of its 95 % interval."""
    n: int
    """Number of examples, or of pairs with different labels."""
    min_agreement: float
    """Agreement below which the run would have been refused."""

    def sentence(self) -> str:
        """Returns the agreement with its interval as a sentence."""
        counted = "pairs" if self.measure == "order of pairs" else "examples"
        return (
            f"judge {self.judge} ({self.model}) agrees with the labels of {self.file}: {self.measure}"
            f" {self.agreement:.3f} (95 % interval {self.low:.3f} to {self.high:.3f}, {self.n} {counted})"
        )


class EpisodeScored(Event):
    """Reward of an episode, from a reward worker, from a rule at the rollout worker, or from the agent itself."""

    subject: ClassVar[str] = "episode.scored"
    work: RunEpisode
    session: str
    reward: float | None = None
    """Reward of the last completed interaction; None if the agent has set rewards itself."""
    rewards: dict[str, float] = {}
    """Rewards by interaction id."""
    metrics: dict[str, float] = {}
    """Further numbers from the reward function."""
    output: str = ""
    ended_by: EndedBy = "agent"
    """Party that ended the episode."""
    end_cause: str = ""
    """Deed of the model that ended the episode; empty if the agent returned."""
    judged: tuple[JudgeAnswer, ...] = ()
    """Answers of judges that the reward follows from."""
    spans: tuple[SpanReward, ...] = ()
    """Rewards of parts of completions, by characters; with an `output` their ranges are of it."""
    places: dict[str, float] = {}
    """Rewards of calls by their places among the trained calls, such as `0` and `-1`, or by interaction id."""


class EpisodeAbandoned(Event):
    """The attempt ended without a trajectory; none of it will be trained."""

    subject: ClassVar[str] = "episode.abandoned"
    work: RunEpisode
    reason: str
    """Cause: `agent`, `timeout`, `environment` (that of the recipe), `reward`, `engine`, `gateway`, `session`, `lost`;
    or, which is no failure, `rejected` by the recipe, `surplus`: it still ran when the last batch was formed,
    `unused`: its agent did not call this policy, or `forked`: it has the settings of the run before the fork."""
    detail: str

    def ended_by(self) -> str:
        """Returns the party at which the attempt ended.

        `agent`, `environment` or `infrastructure`; empty for one that is no failure.
        """
        return PARTIES.get(self.reason, "")


class EpisodeEvaluated(Event):
    """A held-out episode was scored."""

    subject: ClassVar[str] = "episode.evaluated"
    work: RunEpisode
    reward: float
    output: str
    completion_tokens: int
    metrics: dict[str, float] = {}
    """Further numbers from the reward function."""
    sampled_by: dict[int, int] = {}
    """Number of its tokens sampled from each weight version."""
    ended_by: EndedBy = "agent"
    """Party that ended the episode."""
    end_cause: str = ""
    """Deed of the model that ended the episode; empty if the agent returned."""


class TrajectoryExported(Event):
    """A scored episode, ready for training."""

    subject: ClassVar[str] = "trajectory.exported"
    trajectory: Trajectory
    recorded: tuple[InteractionRecorded, ...] = ()
    """Its calls that no `InteractionsRecorded` has."""

    def pack(self) -> TrajectoryExported:
        """Returns the event with token columns as they are sent."""
        calls = tuple(call.pack() for call in self.trajectory.interactions)
        return msgspec.structs.replace(self, trajectory=msgspec.structs.replace(self.trajectory, interactions=calls))


def recorded_calls(message: Message) -> tuple[InteractionRecorded, ...]:
    """The completed model calls that an event reports."""
    match message:
        case InteractionsRecorded() | TrajectoryExported():
            return message.recorded
        case InteractionRecorded():
            return (message,)
    return ()


class TrajectoryDropped(Event):
    """An exported trajectory that will not be trained."""

    subject: ClassVar[str] = "trajectory.dropped"
    episode: str
    group: str
    reason: str
    """`stale`, `incomplete group`, `filtered` (by the recipe, for its rewards), `surplus` (completed after the last
    step), or `forked` (sampled with the settings of the run before the fork)."""
