"""What agents outside the run ask of the gateway: capacity, a session, its end, its trajectory."""

from __future__ import annotations

from typing import ClassVar, Literal

from areal_actors.messages.rollout import RunEpisode
from areal_actors.values import Trajectory, Value
from bus.message import Event, Reply, Request


class SessionStarted(Event):
    """An agent outside the run has a session; it takes a place in a granted group."""

    subject: ClassVar[str] = "session.started"
    session: str
    work: RunEpisode
    member: int
    """Of the group, counted from 0."""
    index: int
    """Counts the sessions of the task, from 0."""
    key: bytes
    """Digest of the session's API key."""


class Refusal(Value):
    """Why the gateway does not do what it is asked."""

    status: int
    """HTTP status that says whose fault it is."""
    reason: str
    field: str = ""
    """Of the request, when one is wrong."""
    retry_after: float = 0.0
    """Seconds after which asking again may help; 0 when it will not."""


class CapacityReserved(Reply):
    """A slot is kept for whoever starts a session next, for so long."""

    subject: ClassVar[str] = "capacity.reserved"
    seconds: float = 0.0
    refused: Refusal | None = None


class ReserveCapacity(Request[CapacityReserved]):
    """Keep a slot for a session that is about to start."""

    subject: ClassVar[str] = "capacity.reserve"
    reply: ClassVar[type[Reply]] = CapacityReserved


class SessionGiven(Reply):
    """The new session and the key that opens it."""

    subject: ClassVar[str] = "session.given"
    session: str = ""
    api_key: str = ""
    refused: Refusal | None = None


class StartSession(Request[SessionGiven]):
    """Give an agent outside the run a session."""

    subject: ClassVar[str] = "session.start"
    reply: ClassVar[type[Reply]] = SessionGiven
    task: str
    api_key: str = ""
    """Chosen by the agent; empty for a new one."""
    group_size: int = 0
    """What the agent takes the group size to be; 0 for whatever it is."""
    replace: bool = False
    """End and export the unfinished session that the key opens, instead of refusing."""


class SessionClosed(Reply):
    """The session has ended; what it led to is durable."""

    subject: ClassVar[str] = "session.closed"
    session: str = ""
    interactions: int = 0
    state: str = ""
    detail: str = ""
    """Why it was abandoned."""
    refused: Refusal | None = None


class EndSession(Request[SessionClosed]):
    """The agent is done. With a reward its session is exported, without any it is abandoned."""

    subject: ClassVar[str] = "session.end"
    reply: ClassVar[type[Reply]] = SessionClosed
    session: str


class InteractionTold(Value):
    """One completed call, without its tokens."""

    id: str
    parent: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    reward: float | None


class OpenCall(Value):
    """A model call that has no answer yet, or none that the agent waited for."""

    seconds: float
    """Since it came, or until the agent left it."""
    waits_for: str
    """`inference_worker-0 (no token yet; it has 12 calls in flight)`."""
    at: Literal["engine", "gateway"]
    """Where it waits."""
    left: bool = False
    """The agent's client hung up."""


class SessionDescribed(Reply):
    """A session as it stands."""

    subject: ClassVar[str] = "session.described"
    session: str = ""
    task: str = ""
    state: str = ""
    detail: str = ""
    interactions: tuple[InteractionTold, ...] = ()
    running: int = 0
    """Calls in hand."""
    lease_seconds: float = 0.0
    expires_in: float = 0.0
    """Seconds until the lease ends, unless the session is used or a call is in hand."""
    engine_failure: str = ""
    """Why a model call of the session has no answer, if it failed in the engine and was not answered since."""
    open_calls: tuple[OpenCall, ...] = ()
    """Those in hand, and the last one that the agent has left."""
    replaced_by: str = ""
    """The session that the episode has now, of another worker or a later attempt."""
    refused: Refusal | None = None


class DescribeSession(Request[SessionDescribed]):
    """How does a session stand?"""

    subject: ClassVar[str] = "session.describe"
    reply: ClassVar[type[Reply]] = SessionDescribed
    session: str
    by_agent: bool = False
    """Asked with the session's own key, which renews its lease."""


class TrajectoryGiven(Reply):
    """The trajectory of a session that was exported."""

    subject: ClassVar[str] = "trajectory.given"
    session: str = ""
    trajectory: Trajectory | None = None
    refused: Refusal | None = None


class GiveTrajectory(Request[TrajectoryGiven]):
    """The trajectory of a session, while it is kept; waits for its end."""

    subject: ClassVar[str] = "trajectory.give"
    reply: ClassVar[type[Reply]] = TrajectoryGiven
    session: str
    wait_seconds: float = 0.0


class GatewayDescribed(Reply):
    """The gateway as it stands."""

    subject: ClassVar[str] = "gateway.described"
    missing: str = ""
    """What it waits for before it can serve; empty when it is ready."""
    sessions: dict[str, int] = {}
    """Live ones, by state."""
    exported: int = 0
    abandoned: int = 0
    """Sessions of outside agents that have ended since the gateway started."""
    room: int = 0
    """Sessions that may start."""
    in_hand: dict[str, int] = {}
    """Calls, by inference worker."""
    refused_completions: dict[str, int] = {}
    """Completions refused since the gateway started, by inference worker."""


class DescribeGateway(Request[GatewayDescribed]):
    """Is the gateway ready, and how busy is it?"""

    subject: ClassVar[str] = "gateway.describe"
    reply: ClassVar[type[Reply]] = GatewayDescribed
