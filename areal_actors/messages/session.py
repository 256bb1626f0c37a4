"""Requests of external agents to the gateway: capacity, sessions and trajectories."""

from __future__ import annotations

from typing import ClassVar, Literal

from areal_actors.core.values import TokenColumns, Trajectory, Value
from areal_actors.messages.rollout import RunEpisode
from areal_bus.message import Event, Reply, Request


class SessionStarted(Event):
    """An external agent has a session, which takes a slot in a granted group."""

    subject: ClassVar[str] = "session.started"
    session: str
    work: RunEpisode
    member: int
    """Number of the member within the group, from 0."""
    index: int
    """Number of the session among those of the task, from 0."""
    key: bytes
    """Digest of the session's API key."""
    user: str = ""
    """User whom the session serves, as its client names it; empty if it names none."""
    consent: bool = True
    """False if nothing may be learned from the session: its conversation is not kept."""
    weight_version: int = -1
    """Version of the weights that answer all of its calls; -1 if it may change, as while weights are trained."""


class Refusal(Value):
    """Rejection of a request by the gateway."""

    status: int
    """HTTP status."""
    reason: str
    field: str = ""
    """Invalid field of the request, if any."""
    retry_after: float = 0.0
    """Seconds after which a retry may succeed; 0 if it will not."""


class CapacityReserved(Reply):
    """A slot is reserved for the next session, for this number of seconds."""

    subject: ClassVar[str] = "capacity.reserved"
    seconds: float = 0.0
    refused: Refusal | None = None


class ReserveCapacity(Request[CapacityReserved]):
    """Reserve a slot for a session that is about to start."""

    subject: ClassVar[str] = "capacity.reserve"
    reply: ClassVar[type[Reply]] = CapacityReserved


class SessionCreated(Reply):
    """A new session and its key."""

    subject: ClassVar[str] = "session.given"
    session: str = ""
    api_key: str = ""
    refused: Refusal | None = None


class StartSession(Request[SessionCreated]):
    """Start a session for an external agent."""

    subject: ClassVar[str] = "session.start"
    reply: ClassVar[type[Reply]] = SessionCreated
    task: str
    """Id of the task."""
    api_key: str = ""
    """Key chosen by the agent; empty to generate one."""
    group_size: int = 0
    """Group size expected by the agent; 0 accepts any."""
    replace: bool = False
    """True to end and export an unfinished session with this key; otherwise the request is refused."""
    gateway: int = 0
    """Number of the gateway at which the session is; gateway 0 starts it."""
    user: str = ""
    """User whom the session serves."""
    consent: bool = True
    """False if nothing may be learned from the session."""


class SessionClosed(Reply):
    """The session has ended, and its result is durable."""

    subject: ClassVar[str] = "session.closed"
    session: str = ""
    interactions: int = 0
    """Number of completed calls."""
    state: str = ""
    detail: str = ""
    """Reason if it was abandoned."""
    refused: Refusal | None = None


class EndSession(Request[SessionClosed]):
    """End a session: with a reward it is exported, without any it is abandoned."""

    subject: ClassVar[str] = "session.end"
    reply: ClassVar[type[Reply]] = SessionClosed
    session: str


class InteractionSummary(Value):
    """Summary of one completed call, without tokens."""

    id: str
    parent: str
    """Id of the interaction whose conversation it continues."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    reward: float | None
    """Reward set so far."""
    client_session: str = ""
    """Name of the conversation at the client, from the request's header `X-Session-ID`."""
    follows: tuple[str, ...] = ()
    """Ids of the interactions that it continues for credit; empty for its parent only."""


class OpenCall(Value):
    """A model call without an answer, or whose client disconnected before the answer."""

    seconds: float
    """Seconds since its arrival, or from its arrival to the disconnection."""
    waits_for: str
    """Responder and state, such as `inference_worker-0 (no token yet; it has 12 calls in flight)`."""
    at: Literal["engine", "gateway"]
    """Component in which it waits."""
    left: bool = False
    """True if the agent's client disconnected."""


class SessionDescribed(Reply):
    """State of a session."""

    subject: ClassVar[str] = "session.described"
    session: str = ""
    task: str = ""
    """Id of the task."""
    state: str = ""
    detail: str = ""
    interactions: tuple[InteractionSummary, ...] = ()
    """Completed calls."""
    running: int = 0
    """Number of calls in flight."""
    lease_seconds: float = 0.0
    expires_in: float = 0.0
    """Seconds until the lease ends, unless the session is used or a call is in flight."""
    engine_failure: str = ""
    """Reason of the last engine failure of a model call, if the call was not answered since."""
    overflow: str = ""
    """Error of the last call, if it was refused because the conversation that the model has continued no longer fits
    the context."""
    has_written: bool = False
    """True if the `document` of the request occurs in an answer of the model."""
    open_calls: tuple[OpenCall, ...] = ()
    """Calls in flight, and the last one whose client disconnected."""
    queued_seconds: float = 0.0
    """Time in which its calls have waited for their first token."""
    replaced_by: str = ""
    """Current session of the episode, by another worker or a later attempt; empty if it is this one."""
    refused: Refusal | None = None


class DescribeSession(Request[SessionDescribed]):
    """Request the state of a session."""

    subject: ClassVar[str] = "session.describe"
    reply: ClassVar[type[Reply]] = SessionDescribed
    session: str
    document: str | None = None
    """Text to look for in the answers of the model."""
    by_agent: bool = False
    """True if requested with the session's own key, which renews its lease."""


class InteractionTokens(Reply):
    """Tokens of a completed call."""

    subject: ClassVar[str] = "interaction.tokens"
    interaction: str = ""
    parent: str = ""
    """Id of the interaction whose conversation it continues."""
    prompt_ids: bytes = b""
    """The whole prompt: u32, little-endian."""
    completion: TokenColumns = TokenColumns()
    """Sampled tokens."""
    finish_reason: str = ""
    refused: Refusal | None = None


class GetInteraction(Request[InteractionTokens]):
    """Request the tokens of a completed call of a live session; renews its lease."""

    subject: ClassVar[str] = "interaction.get"
    reply: ClassVar[type[Reply]] = InteractionTokens
    session: str
    interaction: str


class TrainedSelected(Reply):
    """The selection was recorded, or refused."""

    subject: ClassVar[str] = "trained.selected"
    refused: Refusal | None = None


class SelectTrained(Request[TrainedSelected]):
    """Train only these completed calls of a live session; its other completed calls are context."""

    subject: ClassVar[str] = "trained.select"
    reply: ClassVar[type[Reply]] = TrainedSelected
    session: str
    interactions: tuple[str, ...]


class TrajectoryReply(Reply):
    """Trajectory of an exported session."""

    subject: ClassVar[str] = "trajectory.reply"
    session: str = ""
    trajectory: Trajectory | None = None
    refused: Refusal | None = None


class GetTrajectory(Request[TrajectoryReply]):
    """Request the trajectory of a session, while it is kept; waits for the session's end."""

    subject: ClassVar[str] = "trajectory.get"
    reply: ClassVar[type[Reply]] = TrajectoryReply
    session: str
    wait_seconds: float = 0.0
    """Maximum wait for the session's end in seconds."""


class GatewayDescribed(Reply):
    """State of the gateway."""

    subject: ClassVar[str] = "gateway.described"
    missing: str = ""
    """Dependency for which it waits before it can serve; empty if it is ready."""
    sessions: dict[str, int] = {}
    """Number of live sessions, by state."""
    exported: int = 0
    """Number of exported sessions of external agents since the gateway started."""
    abandoned: int = 0
    """Number of abandoned ones."""
    room: int = 0
    """Number of further sessions that may start."""
    in_hand: dict[str, int] = {}
    """Number of calls in flight, by inference worker."""
    refused_completions: dict[str, int] = {}
    """Number of completions refused since the gateway started, by inference worker."""


class DescribeGateway(Request[GatewayDescribed]):
    """Request the state of the gateway."""

    subject: ClassVar[str] = "gateway.describe"
    reply: ClassVar[type[Reply]] = GatewayDescribed
