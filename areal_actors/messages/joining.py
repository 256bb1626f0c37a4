"""Messages about remote workers, which join a live run and leave it."""

from __future__ import annotations

from typing import Any, ClassVar

from areal_actors.core.values import Value
from areal_bus.message import Event, Reply, Request


class WorkerJoined(Event):
    """A remote worker was admitted; its actor serves when `ActorStarted` follows."""

    subject: ClassVar[str] = "worker.joined"
    worker: str
    """Name of the worker and of its process; never used again in this run."""
    role: str
    """Kind of its actor."""
    host: str
    """Name of its host."""
    actor: str = ""
    """Name of its actor, if it has another: a gateway's, which outlives the process that serves it."""


class WorkerLeft(Event):
    """A remote worker is no longer part of the run: its leased work is redelivered, its user of the bus is removed."""

    subject: ClassVar[str] = "worker.left"
    worker: str
    """Name of the worker."""
    reason: str = ""
    """Cause, as a sentence; empty if it left in order."""
    actor: str = ""
    """Name of its actor, if it has another: a gateway's, whose sessions are lost, and which another process takes
    over."""


class Objects(Value):
    """Address of the files of the run, for a remote worker: code, model, weights and large bodies."""

    port: int
    """Port of the HTTP server."""
    host: str = ""
    """Address of the HTTP server; empty: that of the bus."""
    token: str
    """Token of this worker, sent in the header `Authorization`."""
    share: str = ""
    """Identity of the server's files: a host that finds it beside the weights shares their folder."""
    fingerprint: str = ""
    """SHA-256 of the server's certificate, in hexadecimal digits; empty if it does not encrypt."""


class GatewayKeys(Value):
    """Everything that a gateway of another host needs to go on with the sessions of another process."""

    actor: str
    """Name of its actor, as `session_manager-1`, which has the number of its share."""
    secret: bytes
    """Secret from which the keys of sessions are derived."""
    admin_key: str = ""
    """`gateway.admin_key` of the recipe."""


class JoinAnswer(Reply):
    """Admission of a worker, or the reason why it is refused."""

    subject: ClassVar[str] = "worker.admitted"
    refused: str = ""
    """Reason for which it is refused; empty if it is admitted."""
    worker: str = ""
    """Name of the worker."""
    user: str = ""
    """User of the bus; empty if all processes use the same credentials."""
    password: str = ""
    """Password of the user."""
    objects: Objects | None = None
    """Address of the files of the run; None if it is refused."""
    recipe: dict[str, Any] = {}
    """The resolved recipe, with paths below the folder `code` of the objects, without passwords."""
    gateway: GatewayKeys | None = None
    """The share of a gateway, and its keys; None for other workers."""
    later: bool = False
    """True if a refused worker may be admitted later, in place of another."""


class JoinRun(Request[JoinAnswer]):
    """A process of another host asks to become a worker of the run."""

    subject: ClassVar[str] = "worker.join"
    reply: ClassVar[type[Reply]] = JoinAnswer
    role: str
    """Kind of actor: `rollout_worker`, `inference_worker`, `reward_worker` or `session_manager`, which serves a
    gateway."""
    host: str
    """Name of its host."""
    version: str
    """Version of its areal-actors."""
    code: str
    """Digest of its source files."""
    encrypts: bool = False
    """True for a gateway to which agents connect by HTTPS."""


class LeaseRenewed(Reply):
    """State of the leases of a host."""

    subject: ClassVar[str] = "worker.renewed"
    gone: dict[str, str] = {}
    """Workers that are no longer part of the run, with the reason."""
    ended: str | None = None
    """Error with which the run has ended, empty if it completed its recipe; None while it is live."""


class RenewLease(Request[LeaseRenewed]):
    """The processes of these workers live."""

    subject: ClassVar[str] = "worker.renew"
    reply: ClassVar[type[Reply]] = LeaseRenewed
    workers: tuple[str, ...]
    """Names of the workers."""


class LeaveRun(Request[LeaseRenewed]):
    """The process of a worker has ended."""

    subject: ClassVar[str] = "worker.leave"
    reply: ClassVar[type[Reply]] = LeaseRenewed
    worker: str
    """Name of the worker."""
    reason: str = ""
    """Cause of its death; empty if it ended in order."""
