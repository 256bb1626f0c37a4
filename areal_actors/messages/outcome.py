"""From tokens to a trajectory: how an episode ends."""

from __future__ import annotations

from typing import ClassVar

from areal_actors.messages.rollout import RunEpisode
from areal_actors.values import Trajectory
from bus.message import Event, Telemetry, Work


class AgentReturned(Telemetry):
    """The agent of this session has returned text, which is to be scored: what keeps the session from its end now is not the agent."""

    subject: ClassVar[str] = "agent.returned"
    session: str


class ScoreEpisode(Work):
    """The agent has returned text; say how good it was."""

    subject: ClassVar[str] = "episode.score"
    work: RunEpisode
    session: str
    output: str


class EpisodeScored(Event):
    """What an episode was worth, from the reward worker or from the agent itself."""

    subject: ClassVar[str] = "episode.scored"
    work: RunEpisode
    session: str
    reward: float | None = None
    """For the last completed interaction; None when the agent has set rewards itself."""
    rewards: dict[str, float] = {}
    """By interaction id."""
    output: str = ""


class EpisodeAbandoned(Event):
    """The attempt ended without a trajectory; nothing of it will be trained."""

    subject: ClassVar[str] = "episode.abandoned"
    work: RunEpisode
    reason: str
    """`agent`, `timeout`, `reward`, `engine`, `gateway`, `session`, `lost`: whose fault; or `rejected` by the recipe, which is none."""
    detail: str


class EpisodeEvaluated(Event):
    """A held-out episode is scored."""

    subject: ClassVar[str] = "episode.evaluated"
    work: RunEpisode
    reward: float
    output: str
    completion_tokens: int
    sampled_by: dict[int, int] = {}
    """How many of its tokens each weight version sampled."""


class TrajectoryExported(Event):
    """A scored episode, ready to be trained on."""

    subject: ClassVar[str] = "trajectory.exported"
    trajectory: Trajectory


class TrajectoryDropped(Event):
    """An exported trajectory that will not be trained."""

    subject: ClassVar[str] = "trajectory.dropped"
    episode: str
    group: str
    reason: str
    """`stale`, `incomplete group`, `filtered` (by the recipe, for its rewards), or `surplus` (complete after the last step)."""
