"""The NATS server of a run with a user for each process, which may do what its actors declare.

The gateway gets a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import structlog

from areal_actors.batching.batcher import Batcher
from areal_actors.canary.candidate_session_manager import CandidateSessionManager
from areal_actors.canary.candidate_worker import CandidateWorker
from areal_actors.core.actor_settings import processes_of
from areal_actors.core.errors import SetupError
from areal_actors.core.free_ports import bind_ports, find_free_ports
from areal_actors.core.host_settings import JOIN_TOKEN
from areal_actors.evaluation.evaluator import Evaluator
from areal_actors.feedback.feedback_session_manager import FeedbackSessionManager
from areal_actors.folder.certificate_files import bus_certificate
from areal_actors.folder.run_folder import BusAddresses, RunFolder, ServerAddress
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    ActorStarted,
    ActorStopped,
    BusRestarted,
    Heartbeat,
    JoinRun,
    LeaveRun,
    RenewLease,
    SnapshotRefused,
    SnapshotStored,
)
from areal_actors.metrics.episode_log import EpisodeLog
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.policies.policy_session_manager import PolicySessionManager
from areal_actors.processes.process import actors_of_process
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import COUNTED, SEVERAL
from areal_actors.recipe.supervision import joined_kind
from areal_actors.rewards.judge.settings import asks_engines
from areal_actors.rewards.reward_worker import JudgingRewardWorker, RewardWorker
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.runtime.actor import Actor, Tick
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_actors.supervised.example_source import ExampleSource
from areal_actors.tasks.task_source import TaskSource
from areal_actors.training.checkpointer import Checkpointer
from areal_actors.training.trainer import Trainer
from areal_bus.cluster_watch import ClusterWatch
from areal_bus.descriptors import raise_descriptor_limit
from areal_bus.errors import BusError
from areal_bus.message import Event, Message
from areal_bus.nats import NatsBus
from areal_bus.permissions import Listener, permissions_of
from areal_bus.server import resolve_server
from areal_bus.server_config import LOOPBACK
from areal_bus.server_keeper import RestartSettings, ServerKeeper
from areal_bus.store_key import begin_encrypted, is_encrypted
from areal_bus.tls import SCHEME, Certificate
from areal_bus.users import MONITOR, BusUsers, Permissions, without_credentials

ACTORS: dict[str, type[Actor]] = {
    actor.kind(): actor
    for actor in (
        *(StalenessGate, TaskSource, Batcher, ExampleSource, Evaluator, Checkpointer, Metrics, EpisodeLog),
        *(SessionManager, RolloutWorker, RewardWorker, InferenceWorker, Trainer),
    )
}
"""Actor class of every kind that a recipe can place."""
LIFECYCLE: tuple[type[Message], ...] = (ActorStarted, ActorStopped, Heartbeat, SnapshotRefused, SnapshotStored)
"""Messages that the runtime publishes for every actor."""
JOINER = "areal-join"
"""User that may only ask to become a worker of the run, and renew and end the leases of workers."""
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
"""Passwords that a variable may fix."""
PLAIN = "blobs (events above 256 KiB), snapshots, images, learn, exports, checkpoints"
"""Folders in that of a run that an encrypted log does not protect."""
logger = structlog.get_logger(__name__)
JOINED = "joined."
"""Prefix of the users of joined workers; the rest is the worker's name."""


def with_port(recipe: Recipe) -> Recipe:
    """Returns a recipe with the gateway's port.

    A free one is chosen once, so that a restarted gateway keeps its address.
    One outside of the range for outgoing connections is preferred, since it stays free until the gateway listens.

    Raises:
        SetupError: the port is in use.
    """
    port = _gateway_port(recipe.gateway, max(recipe.actors.session_manager.count, 1))
    return msgspec.structs.replace(recipe, gateway=msgspec.structs.replace(recipe.gateway, port=port))


def _gateway_port(gateway: GatewaySettings, count: int) -> int:
    """Returns the first of `count` free ports in a row."""
    if gateway.port == 0:
        try:
            return find_free_ports(count, gateway.host)
        except OSError as error:
            raise SetupError(f"gateway.host: cannot listen on {gateway.host} ({error.strerror})") from error
    for number in range(count):
        try:
            bind_ports(gateway.host, gateway.port + number, 1)
        except OSError as error:
            place = f"{gateway.host}:{gateway.port + number}"
            raise SetupError(
                f"gateway.port: cannot listen on {place} ({error.strerror}); set another port, or 0 to take a free one"
            ) from error
    return gateway.port


class RunServer:
    """The NATS server of a run: embedded and restarted when it dies, or external."""

    def __init__(
        self, addresses: BusAddresses, keeper: ServerKeeper | None = None, certificate: Certificate | None = None
    ) -> None:
        self.addresses = addresses
        self.certificate = certificate
        """Certificate of what the run serves to other hosts; None if that is not encrypted."""
        self.keeper = keeper
        self.failed: asyncio.Future[str] = keeper.failed if keeper else asyncio.get_running_loop().create_future()
        """Resolved with a sentence when the server is gone and cannot be restarted."""
        self._changing_users = asyncio.Lock()

    async def admit(self, recipe: Recipe, worker: str, actor: str = "") -> tuple[str, str]:
        """Create the user of a joined worker.

        Returns name and password, empty if all processes use the same credentials.
        `actor`: name of its actor, if it has another.

        Raises:
            ServerUnavailable: the server does not adopt it.
        """
        if self.keeper is None or self.keeper.server.users is None:
            return "", ""
        user = JOINED + worker
        async with self._changing_users:
            users = self.keeper.server.users.with_user(user, joined_permissions(recipe, worker, actor))
            await self.keeper.set_users(users)
        return user, users.passwords[user]

    async def expel(self, worker: str) -> None:
        """Remove the user of a joined worker, which disconnects it."""
        if self.keeper is None or self.keeper.server.users is None:
            return
        async with self._changing_users:
            await self.keeper.set_users(self.keeper.server.users.without_user(JOINED + worker))

    async def report_restarts(self, bus: NatsBus, publish: Callable[[Event], Awaitable[None]]) -> None:
        """Publish `BusRestarted` after every restart, or change of the leader in a cluster, until cancelled."""
        watch = ClusterWatch(bus.streams)
        while self.keeper is None and bus.streams.connection.in_cluster:
            change = await watch.next_change()
            with contextlib.suppress(BusError):
                await publish(
                    BusRestarted(reason=change.reason, seconds=change.seconds, restarts=0, leader=change.leader)
                )
        while self.keeper is not None:
            outage = await self.keeper.outages.get()
            with contextlib.suppress(BusError):
                await publish(BusRestarted(reason=outage.reason, seconds=outage.seconds, restarts=outage.restarts))


@asynccontextmanager
async def run_server(recipe: Recipe, folder: RunFolder) -> AsyncIterator[RunServer]:
    """Start the embedded NATS server with users for this run, or use the external one.

    Raises:
        SetupError: it is to be encrypted, and the external one of NATS_URL is used.
    """
    raise_descriptor_limit()
    if url := resolve_server(recipe.bus.url or None):
        if recipe.bus.tls:
            raise SetupError(
                "bus.tls: the server of NATS_URL encrypts by its own settings; write tls:// there, and leave"
                " bus.tls out"
            )
        owner = ServerAddress(url=url, run=recipe.run, pid=os.getpid())
        monitor = msgspec.structs.replace(owner, url=recipe.bus.monitor_url or url)
        addresses = BusAddresses(owner=owner, monitor=monitor, joiner=owner if recipe.bus.host else None)
        with _make_certificate(recipe, folder, secure=url.startswith(f"{SCHEME}://")) as certificate:
            yield RunServer(addresses, certificate=certificate)
        return
    with _make_certificate(recipe, folder) as certificate:
        async with _own_server(recipe, folder, certificate) as server:
            yield server


@asynccontextmanager
async def _own_server(recipe: Recipe, folder: RunFolder, certificate: Certificate | None) -> AsyncIterator[RunServer]:
    users = users_of(recipe)
    bus = recipe.bus
    if recipe.log.encrypt:
        begin_encrypted(folder.nats)
    if is_encrypted(folder.nats):
        logger.warning(
            "the log is encrypted; these folders of the run are not, and may have texts or tokens", folders=PLAIN
        )
    if bus.host and (token := fixed_token()):
        users = users.with_password(JOINER, token)
    keeping = RestartSettings(
        max_restarts=bus.max_restarts, window_seconds=bus.window_seconds, answer_seconds=bus.answer_seconds
    )
    keeper = await ServerKeeper.start(
        folder.nats,
        keeping,
        sync_interval=bus.sync,
        users=users,
        host=bus.host or LOOPBACK,
        port=bus.port,
        certificate=certificate,
    )
    server = keeper.server
    owner = ServerAddress(url=server.url, run=recipe.run, pid=os.getpid())
    monitor = msgspec.structs.replace(owner, url=users.url(MONITOR, server.address))
    processes = {name: users.url(name, server.address) for name in users.members() if name != JOINER}
    joiner = msgspec.structs.replace(owner, url=users.url(JOINER, server.address)) if bus.host else None
    try:
        yield RunServer(
            BusAddresses(owner=owner, monitor=monitor, processes=processes, joiner=joiner), keeper, certificate
        )
    finally:
        await keeper.stop()


@contextmanager
def _make_certificate(recipe: Recipe, folder: RunFolder, *, secure: bool = False) -> Iterator[Certificate | None]:
    """Yield the certificate of this start of a run, if it encrypts.

    `secure`: the bus is encrypted, so its files are, too.
    """
    if not (recipe.bus.host and (recipe.bus.tls or secure)):
        yield None
        return
    certificate = bus_certificate(recipe.bus, folder.path / "tls")
    try:
        yield certificate
    finally:
        certificate.key.unlink(missing_ok=True)


def fixed_token() -> str:
    """Returns the password of remote workers that the environment fixes; empty if a new one is to be made.

    Raises:
        SetupError: it could be guessed, or needs quoting.
    """
    token = os.environ.get(JOIN_TOKEN, "")
    if token and not TOKEN.fullmatch(token):
        remedy = "write 16 to 128 letters, digits, - and _, as `openssl rand -hex 16` prints, or unset it"
        raise SetupError(
            f"{JOIN_TOKEN}: found {len(token)} characters that do not make a password of the bus; {remedy}"
        )
    return token


async def refuse_old_log(bus: NatsBus, server: ServerAddress) -> None:
    """Check that the log of a new run is empty.

    Raises:
        SetupError: the server already has a log of this name.
    """
    async for _ in bus.log():
        place = without_credentials(server.url)
        raise SetupError(
            f"the NATS server at {place} has the log of an earlier run '{bus.run}'; choose another name: run=NAME"
        )


def users_of(recipe: Recipe) -> BusUsers:
    """Creates the users for a run of this recipe.

    Raises:
        SetupError: a process name is not a valid user name.
    """
    permissions = permissions_of(recipe.run, _listeners(recipe))
    permissions.pop(f"{JOINED}*", None)
    try:
        return BusUsers.make(recipe.run, permissions)
    except ValueError as error:
        raise SetupError(f"actors: each process name is also its bus user name: {error}") from error


def joined_permissions(recipe: Recipe, worker: str, actor: str = "") -> Permissions:
    """Returns the permissions of a joined worker: what its actor declares, which may have another name."""
    user, declared = JOINED + worker, _declared_by(recipe, joined_kind(worker))
    listeners = {**_listeners(recipe), user: [listener(actor or worker, declared)]}
    return permissions_of(recipe.run, listeners)[user]


def _listeners(recipe: Recipe) -> dict[str, list[Listener]]:
    """Returns the declarations of every process; if workers may join, with theirs, so that others may answer them."""
    placements = msgspec.structs.asdict(recipe.actors).values()
    names = dict.fromkeys(process for placement in placements for process in processes_of(placement))
    by_process = {
        name: [
            listener(instance, _declared_by(recipe, kind)) for instance, kind in actors_of_process(recipe, name).items()
        ]
        for name in names
    }
    if recipe.bus.host:
        by_process[JOINER] = [Listener(instance=JOINER, receives=(), sends=(), asks=(JoinRun, RenewLease, LeaveRun))]
        by_process[f"{JOINED}*"] = [
            listener("joined", _declared_by(recipe, kind))
            for kind in sorted(COUNTED if recipe.gateway.joined else SEVERAL)
        ]
    return by_process


def _declared_by(recipe: Recipe, kind: str) -> type[Actor]:
    """Returns the class of an actor in this run.

    Only judges that are the run's own engines let rewards ask them, and only a policy's sessions are another run's.
    """
    if kind == SessionManager.kind() and recipe.policy is not None:
        return PolicySessionManager
    if kind == SessionManager.kind() and recipe.takes_feedback():
        return CandidateSessionManager if recipe.has_candidate() else FeedbackSessionManager
    if kind == InferenceWorker.kind() and recipe.has_candidate():
        return CandidateWorker
    if kind == RewardWorker.kind() and any(
        asks_engines(source.task.reward, source.task.reward_options) for source in source_recipes(recipe).values()
    ):
        return JudgingRewardWorker
    return ACTORS[kind]


def listener(instance: str, actor: type[Actor]) -> Listener:
    """An actor's declarations: the messages of its handlers, those that these yield, and its `asks`."""
    sends = {kind for handler in actor.handlers.values() for kind in handler.emits}
    receives = tuple(kind for kind in actor.handlers if kind is not Tick)
    return Listener(instance=instance, receives=receives, sends=(*sends, *LIFECYCLE), asks=actor.asks)
