"""Admits remote workers to a live run, renews their leases, and lets go those that leave or are silent."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from areal_actors import __version__
from areal_actors.core.command import COMMAND
from areal_actors.core.gateways import GATEWAY, gateway_name
from areal_actors.folder.run_folder import RunFolder
from areal_actors.hosts.gateway_shares import GatewayShares
from areal_actors.hosts.object_access import access_of
from areal_actors.hosts.object_keeper import ObjectKeeper
from areal_actors.hosts.object_process import Grant
from areal_actors.hosts.portable_recipe import PortableRecipe, code_digest
from areal_actors.messages import (
    ActorFailed,
    GatewayKeys,
    JoinAnswer,
    JoinRun,
    LeaseRenewed,
    LeaveRun,
    Objects,
    RenewLease,
    WeightsPublished,
    WorkerJoined,
    WorkerLeft,
)
from areal_actors.processes.remote_gateway import gateway_address
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import COUNTED
from areal_actors.recipe.supervision import FIRST_JOINED, gateways_of_others
from areal_actors.supervision.health import HealthMonitor
from areal_actors.supervision.nats_server import RunServer
from areal_bus.base import Bus, Delivery, Stamp
from areal_bus.errors import BusError
from areal_bus.message import Event, Reply, Request
from areal_bus.server import EVERY_INTERFACE
from areal_bus.server_config import max_connections
from areal_bus.users import without_credentials

SENDER = "supervisor"
REQUESTS: tuple[type[Request[Any]], ...] = (JoinRun, RenewLease, LeaveRun)
POLL_SECONDS = 0.1
SPARE_CONNECTIONS = 64
"""Connections to the bus beside those of workers: of `areal-actors join`, monitors, and workers that reconnect."""
LEAVING_SECONDS = 5.0
"""Time beyond `watchdog.stop_seconds` that joined workers have to notice the end of the run and leave."""
TAKE_OVER_SECONDS = 5.0
"""Time in which another host may serve a gateway that was lost, before the run's own host does."""

logger = structlog.get_logger(__name__)


class Joining:
    """Remote workers, from their admission to their end."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        bus: Bus,
        server: RunServer,
        health: HealthMonitor,
        publish: Callable[[Event], Awaitable[None]],
        start: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        """`start` starts processes of the run's own host."""
        self.recipe, self.folder, self.bus, self.server, self.publish = recipe, folder, bus, server, publish
        self.start_processes = start
        self.shares = GatewayShares(gateways_of_others(recipe))
        self.health, self.leases = health, health.leases
        health.let_go = self._let_go
        self.joined = 0
        """Number of workers admitted so far, in earlier launches too."""
        self.tokens: dict[str, str] = {}
        """Token of each worker for the files of the run."""
        self.gone: dict[str, str] = {}
        """Workers of this launch that are no longer part of the run, with the reason."""
        self.ended: str | None = None
        portable = PortableRecipe(recipe, Path.cwd())
        self.portable = portable.recipe
        self.objects = ObjectKeeper(recipe.run, folder, portable.files, recipe.trainer.weights_folder)
        self.code = code_digest()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self, joined: int) -> str:
        """Begin to serve the run's files; returns how to join, for the terminal.

        `joined`: workers admitted in earlier launches.

        Raises:
            SetupError: the address cannot be used.
        """
        self.joined = joined
        await self.objects.start(self.recipe.bus.host, self.recipe.bus.objects_port, self.server.certificate)
        joiner = self.server.addresses.joiner
        assert joiner is not None
        file = self.folder.invite(joiner)
        fingerprint = f"#{parts.fragment}" if (parts := urlsplit(joiner.url)).fragment else ""
        address = f"{without_credentials(joiner.url)}/{self.recipe.run}{fingerprint}"
        if self.recipe.bus.host in EVERY_INTERFACE:
            address = address.replace("127.0.0.1", "ADDRESS-OF-THIS-HOST")
        command = f"{COMMAND} join {address} --credential {file.name} --role rollout_worker"
        return f"remote workers join, with a copy of {file}: {command}"

    async def close(self) -> None:
        """Serve the run's files no longer."""
        await self.objects.stop()

    def weights_published(self, event: WeightsPublished) -> None:
        """Note the model's folder."""
        self._start(self.objects.publish_model(Path(event.location.resolve(self.folder.path).model)))

    async def serve(self) -> None:
        """Answer until cancelled."""
        async with self.bus.requests(*REQUESTS, group=SENDER, address=SENDER) as inbox:
            async for delivery in inbox:
                self._start(self._answer(delivery))

    async def dismiss(self, error: str) -> None:
        """Let all workers know that the run has ended, and wait until they have left, but not longer than they need."""
        self.ended = error
        with suppress(TimeoutError):
            async with asyncio.timeout(self.recipe.watchdog.stop_seconds + LEAVING_SECONDS):
                while self.leases.held:  # noqa: ASYNC110 - they are in other processes
                    await asyncio.sleep(POLL_SECONDS)
        for worker in sorted(self.leases.held):
            await self._leave(worker, "it had not left when the run ended")

    async def _answer(self, delivery: Delivery) -> None:
        message = delivery.message
        if isinstance(message, JoinRun):
            reply: Reply = await self._join(message)
        elif isinstance(message, LeaveRun):
            await self._leave(message.worker, message.reason)
            reply = LeaseRenewed(ended=self.ended)
        else:
            assert isinstance(message, RenewLease)
            for worker in message.workers:
                self.leases.renew(worker, self.health.clock.watching)
            unknown = {
                worker: "the run does not know it" for worker in message.workers if worker not in self.leases.held
            }
            reply = LeaseRenewed(
                gone={worker: self.gone.get(worker, why) for worker, why in unknown.items()}, ended=self.ended
            )
        stamp = Stamp(id=uuid.uuid4().hex, sender=SENDER, time=time.time(), cause=delivery.envelope.id)
        await self.bus.reply(delivery.reply_to, reply, stamp)

    async def _join(self, request: JoinRun) -> JoinAnswer:
        if refused := self._no_connection() or self._refusal(request):
            return JoinAnswer(refused=refused)
        worker = f"{request.role}-{FIRST_JOINED + self.joined}"
        actor = self.shares.assign(worker) if request.role == GATEWAY else ""
        if request.role == GATEWAY and not actor:
            return JoinAnswer(refused="each gateway is served (gateway.joined)", later=bool(self.shares.processes))
        self.joined += 1
        try:
            user, password = await self.server.admit(self.recipe, worker, actor)
        except BusError as error:
            self.shares.release(worker)
            return JoinAnswer(refused=str(error))
        token = self.tokens[worker] = uuid.uuid4().hex
        await self.objects.grant(Grant(token=token, access=access_of(request.role, actor)))
        await self.publish(WorkerJoined(worker=worker, role=request.role, host=request.host, actor=actor))
        self.leases.admit(worker, self.health.clock.watching)
        host = "" if self.recipe.bus.host in EVERY_INTERFACE else self.recipe.bus.host
        certificate = self.server.certificate
        objects = Objects(
            host=host,
            port=self.objects.port,
            token=token,
            share=self.objects.share,
            fingerprint=certificate.fingerprint if certificate is not None else "",
        )
        keys = (
            GatewayKeys(actor=actor, secret=self.folder.secret(), admin_key=self.recipe.gateway.admin_key)
            if actor
            else None
        )
        return JoinAnswer(
            worker=worker, user=user, password=password, objects=objects, recipe=self.portable, gateway=keys
        )

    def _no_connection(self) -> str:
        """Returns why the bus has no connection for another worker; empty if it has."""
        if self.server.keeper is None:
            return ""  # an existing server has limits of its own
        most = max_connections() - len(self.server.addresses.processes) - SPARE_CONNECTIONS
        if len(self.leases.held) < most:
            return ""
        return (
            f"its bus has connections for {max(most, 0):,} remote workers; raise the hard limit of descriptors on the"
            " run's host"
        )

    def _refusal(self, request: JoinRun) -> str:
        """Returns why a worker cannot join; empty if it can."""
        if self.ended is not None:
            return f"run '{self.recipe.run}' has ended"
        if request.role not in COUNTED:
            return f"there is no role '{request.role}'; roles: {', '.join(sorted(COUNTED))}"
        if request.code != self.code:
            return (
                f"this host has another version of areal-actors than the run: {request.version} ({request.code}) here, "
                f"{__version__} ({self.code}) there; install the same"
            )
        if request.role in self.recipe.absent() or (request.role == "inference_worker" and self.recipe.is_served()):
            return f"this run has no {request.role}: its episodes are run elsewhere, or it has none"
        if request.role == GATEWAY:
            return self._no_gateway(request)
        return self._unreachable() if request.role == "rollout_worker" else ""

    def _no_gateway(self, request: JoinRun) -> str:
        if not self.shares.processes:
            return "it leaves no gateway to other hosts; start it with gateway.joined=1"
        if self.recipe.gateway.certificate and not request.encrypts:
            files = "--set gateway.certificate=FILE --set gateway.certificate_key=FILE --set gateway.advertise=NAME"
            return f"its gateways encrypt (gateway.certificate), each with a certificate of its own host: add {files}"
        return ""

    def _unreachable(self) -> str:
        """Returns why agents of another host cannot reach their gateways; empty if they can."""
        is_served_here = len(self.shares.processes) < self.recipe.actors.session_manager.count
        if is_served_here and not self._reaches_gateways():
            gateway = self.recipe.gateway.url(self.recipe.gateway.port)
            remedy = (
                f"gateway.host={self.recipe.bus.host}, and gateway.advertise if that is no address that other hosts"
                " reach"
            )
            return f"agents on this host cannot reach the gateway at {gateway}; start the run with {remedy}"
        return ""

    def _reaches_gateways(self) -> bool:
        """Returns True if agents of other hosts can reach gateways of the run's own host."""
        gateway = self.recipe.gateway.url(self.recipe.gateway.port)
        return _is_local(self.recipe.bus.host) or not _is_local(urlsplit(gateway).hostname or "")

    async def _leave(self, worker: str, reason: str) -> None:
        """End a lease; with a reason, its actor has failed."""
        if self.leases.held.pop(worker, None) is None:
            return
        self.gone[worker] = reason or "it has left"
        await self.objects.revoke(self.tokens.pop(worker, ""))
        actor = self.shares.actor_of(worker)
        if reason:
            logger.warning("a remote worker was lost", worker=worker, reason=reason)
            await self.publish(ActorFailed(actor=actor or worker, process=worker, reason=reason))
        await self.publish(WorkerLeft(worker=worker, reason=reason, actor=actor))
        await self.server.expel(worker)
        if (number := self.shares.release(worker)) is not None:
            self._start(self._take_over(number))

    async def _take_over(self, number: int) -> None:
        """Serve a gateway on the run's own host, unless another soon does or its agents could not reach it here."""
        await asyncio.sleep(TAKE_OVER_SECONDS)
        if self.ended is not None:
            return
        if not self._reaches_gateways():
            logger.warning(
                "a gateway waits for another host: agents there cannot reach one here (gateway.host)", number=number
            )
        elif process := self.shares.take_over(number):
            address = gateway_address(self.recipe, gateway_name(number))
            logger.warning(
                "a gateway of another host is served here now", number=number, process=process, address=address
            )
            await self.start_processes([process])

    def _let_go(self, worker: str, reason: str) -> None:
        self._start(self._leave(worker, reason))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a remote worker could not be served", exc_info=error)


def _is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
