"""Backends of a hand-written loop.

Gateway and engines run in its own process, in separate processes, or on a joined server. The rollout worker and the
reward worker are always in the loop's process, because workflows are its objects (the reward function itself runs in a
child); backends differ in the location of gateway and inference workers, and in the bus.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import structlog

from areal_actors.core.actor_settings import processes_of
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.watchdog_settings import QUIET_SECONDS
from areal_actors.folder.process_logs import log_to_file
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import KINDS, DescribeGateway, Heartbeat, RunStarted
from areal_actors.processes.actor_host import PROCESS, ActorHost
from areal_actors.processes.fold_actors import BuildContext, Builder
from areal_actors.processes.tensor_process import TORCH_ACTORS
from areal_actors.recipe.load import serving_recipe
from areal_actors.recipe.recipe import Recipe, redact_recipe
from areal_actors.run.preflight import fresh_folder
from areal_actors.supervision.nats_server import refuse_old_log, run_server, with_port
from areal_actors.supervision.supervisor import Supervisor
from areal_bus.base import Bus, Stamp
from areal_bus.errors import NoResponder
from areal_bus.memory import MemoryBus
from areal_bus.nats import NatsBus
from areal_bus.users import without_credentials

LEASE_SECONDS = 3600.0
"""Lease in a single process, where no worker can die alone; a busy trainer may delay renewals."""
LISTEN_SECONDS = QUIET_SECONDS + 1.5
"""Longer than the interval between two heartbeats of an actor."""
GATEWAY_SECONDS = 30.0
"""Time for the gateway of a joined server to answer."""
RETRY_SECONDS = 0.1


Backend = Callable[[Recipe], AbstractAsyncContextManager[ActorHost]]
"""Opens the bus and actors for the rollouts of a recipe, and closes them again."""


def in_process(builders: Mapping[str, Builder] = TORCH_ACTORS) -> Backend:
    """Backend with gateway and engines in this process, on an in-memory bus: fast to start, without restarts."""

    @asynccontextmanager
    async def open_host(recipe: Recipe) -> AsyncIterator[ActorHost]:
        with _folder(recipe) as folder:
            workers = _instances(recipe, "inference_worker")
            host = ActorHost(
                MemoryBus(recipe.run, lease_seconds=LEASE_SECONDS), recipe, folder, inference_workers=workers
            )
            try:
                await host.publish(_started_event(recipe, folder))
                for kind in ("inference_worker", "session_manager"):
                    for instance in _instances(recipe, kind):
                        await host.serve(
                            instance, builders[kind](BuildContext(recipe=recipe, folder=folder, instance=instance))
                        )
                yield host
            finally:
                await host.stop()

    return open_host


@asynccontextmanager
async def processes(recipe: Recipe) -> AsyncIterator[ActorHost]:
    """Backend with gateway and engines in separate processes on an embedded NATS server.

    Each is restarted when it dies.
    """
    recipe = serving_recipe(with_port(recipe))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_folder(recipe))
        server = await stack.enter_async_context(run_server(recipe, folder))
        addresses, owner = server.addresses, server.addresses.owner
        bus = await NatsBus.connect(
            owner.url, recipe.run, name=PROCESS, kinds=KINDS, replicas=recipe.bus.replicas, blobs=folder.blobs
        )
        stack.push_async_callback(bus.close)
        await refuse_old_log(bus, owner)
        folder.announce(owner, monitor=addresses.monitor)
        stack.callback(folder.withdraw)
        host = ActorHost(bus, recipe, folder, prefix="loop-", inference_workers=_instances(recipe, "inference_worker"))
        supervisor = Supervisor(recipe, folder, host.publish, addresses)
        stack.push_async_callback(supervisor.stop)
        _forward_first(host.failed, (supervisor.failed, server.failed))
        stack.push_async_callback(host.stop)
        reporting = asyncio.create_task(server.report_restarts(bus, host.publish))
        stack.callback(reporting.cancel)
        await host.publish(_started_event(recipe, folder))
        await supervisor.start(supervisor.startable())
        yield host


def joined(url: str, run: str, *, token: str = "", blobs: Path | None = None) -> Backend:
    """Backend with the gateway and engines of a running `areal-actors serve`, also on another machine.

    Args:
        url: `nats://user:password@host:port`, as in `bus.json` in the folder of the served model.
        run: name of the served run, which ends with `-serve`.
        token: instead of user and password, if the server uses one token for all.
        blobs: the folder of that name beside `bus.json`, if accessible from this machine: for messages above 256 KiB.
    """

    @asynccontextmanager
    async def open_host(recipe: Recipe) -> AsyncIterator[ActorHost]:
        bus = await NatsBus.connect(url, run, name=PROCESS, token=token, blobs=blobs)
        host = ActorHost(bus, recipe, _place(recipe), prefix=f"loop-{secrets.token_hex(3)}-")
        lost = asyncio.ensure_future(bus.wait_lost())
        _forward_first(host.failed, (lost,))
        try:
            await _refuse_unfit(bus, f"'{run}' at {without_credentials(url)}")
            yield host
        finally:
            await host.stop()
            lost.cancel()
            await bus.close()

    return open_host


def joined_folder(folder: Path | str) -> Backend:
    """Like `joined`, by the folder of the served model, `runs/NAME-serve`.

    Raises:
        SetupError: the folder belongs to no running `areal-actors serve`.
    """
    place = RunFolder(Path(folder))
    try:
        server = place.server()
    except OSError as error:
        raise SetupError(
            f"{place.path} has no bus.json: no `{COMMAND} serve` is running there; start `{COMMAND} serve RECIPE`"
        ) from error
    return joined(server.url, server.run, token=server.token, blobs=place.blobs)


async def _refuse_unfit(bus: Bus, where: str) -> None:
    """Check that the run is served without a trainer, and joined by no other controller.

    They would take each other's work.

    Raises:
        SetupError: the run cannot be joined; the message has the reason.
    """
    async for envelope in bus.log():
        if envelope.subject == RunStarted.subject:
            if envelope.open(RunStarted).recipe.get("actors", {}).get("trainer", {}).get("count", 1):
                raise SetupError(f"{where} is a run with its own trainer; join one started by `{COMMAND} serve RECIPE`")
            break
    await _gateway(bus, where)
    if other := await _process_of(bus, "rollout_worker"):
        raise SetupError(
            f"{where} is already joined by another controller (process {other}); serve another model, or close that"
            " controller"
        )


async def _gateway(bus: Bus, where: str) -> None:
    """Wait for the gateway, which may still be starting."""
    until = time.monotonic() + GATEWAY_SECONDS
    while True:
        try:
            await bus.request(
                DescribeGateway(), Stamp(id=uuid.uuid4().hex, sender=PROCESS, time=time.time()), timeout=GATEWAY_SECONDS
            )
        except NoResponder as error:
            if time.monotonic() > until:
                raise SetupError(f"{where} has no gateway now; is `{COMMAND} serve` still running?") from error
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


async def _process_of(bus: Bus, kind: str) -> int:
    """Returns the process id of a live actor of this kind; 0 if none sends heartbeats."""
    async with bus.telemetry(Heartbeat) as inbox:
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                async for delivery in inbox:
                    beat = delivery.message
                    if isinstance(beat, Heartbeat) and beat.actor.startswith(kind):
                        return beat.pid
        except TimeoutError:
            pass
    return 0


def _started_event(recipe: Recipe, folder: RunFolder) -> RunStarted:
    return RunStarted(recipe=redact_recipe(recipe), profile="", reason="a hand-written loop", folder=str(folder.path))


def _place(recipe: Recipe) -> RunFolder:
    return RunFolder(Path(recipe.folder).absolute() / recipe.run)


@contextmanager
def _folder(recipe: Recipe) -> Iterator[RunFolder]:
    """Create a new folder for this loop; an earlier one of the same name is set aside.

    Raises:
        SetupError: a run or another loop of this name is live, or the folder is not writable.
    """
    folder = _place(recipe)
    with fresh_folder(recipe, folder, lambda given: given):
        if not structlog.is_configured():
            log_to_file(folder.log_of(PROCESS), PROCESS)
        yield folder


def _instances(recipe: Recipe, kind: str) -> list[str]:
    return [f"{kind}-{index}" for index in range(len(processes_of(getattr(recipe.actors, kind))))]


def _forward_first(result: asyncio.Future[str], ends: Iterable[asyncio.Future[str]]) -> None:
    """Set `result` to the first of these results."""

    def over(end: asyncio.Future[str]) -> None:
        if not end.cancelled() and not result.done():
            result.set_result(end.result())

    for end in ends:
        end.add_done_callback(over)
