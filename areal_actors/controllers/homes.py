"""Where the actors of a hand-written loop live: in its own process, in processes of their own, or where somebody serves them.

The rollout worker and the reward worker are always in the loop's process, because workflows are its objects (the reward
function itself runs in a child); what differs is where the gateway and the inference workers are, and over which bus.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import structlog

from areal_actors.actor import Actor
from areal_actors.errors import RolloutError, SetupError
from areal_actors.messages import KINDS, ActorStopped, DescribeGateway, Heartbeat, RunStarted
from areal_actors.recipe.load import served
from areal_actors.recipe.recipe import Recipe, shown
from areal_actors.recipe.supervision import processes_of
from areal_actors.run.fresh_folder import fresh_folder
from areal_actors.run.logs import log_to_file
from areal_actors.run.process import Builder, Place
from areal_actors.run.server import free_port, refuse_old_log, run_server
from areal_actors.run.supervisor import Supervisor
from areal_actors.run.tensor_process import HEAVY
from areal_actors.run_folder import RunFolder
from areal_actors.runtime import Identity, Runtime
from bus.base import Bus, Stamp
from bus.errors import NoResponder
from bus.memory import MemoryBus
from bus.message import Event
from bus.nats import NatsBus
from bus.users import without_credentials

PROCESS = "controller"
LEASE_SECONDS = 3600.0
"""Of work in a process where nobody can die alone; a busy trainer may keep it from being renewed."""
STOP_SECONDS = 5.0
LISTEN_SECONDS = 2.5
"""Longer than an actor is silent between two heartbeats."""
PATIENCE_SECONDS = 5.0
"""For the gateway of what is joined."""
RETRY_SECONDS = 0.1


class Household:
    """A bus, the folder of the run, and the actors served in this event loop."""

    def __init__(self, bus: Bus, recipe: Recipe, folder: RunFolder, *, prefix: str = "", inference_workers: Sequence[str] = ()) -> None:
        self.bus = bus
        self.recipe = recipe
        self.folder = folder
        self.prefix = prefix
        """Of the names of groups."""
        self.inference_workers = inference_workers
        """Those that are to be; where the household is joined they are heard of."""
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when the actors cannot go on."""
        self._serving: list[tuple[str, Actor, asyncio.Task[None]]] = []

    async def say(self, event: Event, sender: str = PROCESS) -> None:
        """Put an event of the loop's own into the log."""
        await self.bus.publish(event, Stamp(id=uuid.uuid4().hex, sender=sender, time=time.time()))

    async def serve(self, instance: str, actor: Actor) -> None:
        """Start an actor here; returns when it can be spoken to.

        Raises:
            ArealError: what it raised when it started.
        """
        runtime = Runtime(actor, self.bus, Identity(instance=instance, process=PROCESS, seed=self.recipe.seed))
        serving = asyncio.create_task(runtime.serve())
        ready = asyncio.create_task(runtime.ready.wait())
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if serving.done():
            raise _leaf(serving.exception())
        self._serving.append((instance, actor, serving))
        serving.add_done_callback(lambda ended: self._over(instance, ended))

    def _over(self, instance: str, ended: asyncio.Task[None]) -> None:
        if ended.cancelled() or self.failed.done():
            return
        error = _leaf(ended.exception())
        self.failed.set_result(f"{instance} failed: {type(error).__name__}: {error}")

    async def stop(self) -> None:
        """End the actors served here, those that use others first."""
        for instance, actor, serving in reversed(self._serving):
            await actor.drain()
            serving.cancel()
            await asyncio.wait({serving}, timeout=STOP_SECONDS)
            await self.say(ActorStopped(actor=instance, process=PROCESS), instance)
        self._serving.clear()


Home = Callable[[Recipe], AbstractAsyncContextManager[Household]]
"""Opens what a recipe needs to roll out, and closes it again."""


def in_process(builders: Mapping[str, Builder] = HEAVY) -> Home:
    """Gateway and engines in this process, on a bus in memory: nothing to start, and nothing that is restarted."""

    @asynccontextmanager
    async def opened(recipe: Recipe) -> AsyncIterator[Household]:
        with _folder(recipe) as folder:
            workers = _instances(recipe, "inference_worker")
            house = Household(MemoryBus(recipe.run, lease_seconds=LEASE_SECONDS), recipe, folder, inference_workers=workers)
            try:
                await house.say(_started(recipe, folder))
                for kind in ("inference_worker", "session_manager"):
                    for instance in _instances(recipe, kind):
                        await house.serve(instance, builders[kind](Place(recipe=recipe, folder=folder, instance=instance)))
                yield house
            finally:
                await house.stop()

    return opened


@asynccontextmanager
async def processes(recipe: Recipe) -> AsyncIterator[Household]:
    """Gateway and engines in processes of their own, on a NATS server of this loop's; each is restarted when it dies."""
    recipe = served(msgspec.structs.replace(recipe, gateway=msgspec.structs.replace(recipe.gateway, port=free_port(recipe))))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_folder(recipe))
        server = await stack.enter_async_context(run_server(recipe, folder))
        addresses, owner = server.addresses, server.addresses.owner
        bus = await NatsBus.connect(owner.url, recipe.run, name=PROCESS, kinds=KINDS, blobs=folder.blobs)
        stack.push_async_callback(bus.close)
        await refuse_old_log(bus, owner)
        folder.announce(owner, monitor=addresses.monitor)
        stack.callback(folder.withdraw)
        house = Household(bus, recipe, folder, prefix="loop-", inference_workers=_instances(recipe, "inference_worker"))
        supervisor = Supervisor(recipe, folder, house.say, addresses)
        stack.push_async_callback(supervisor.stop)
        _first(house.failed, (supervisor.failed, server.failed))
        stack.push_async_callback(house.stop)
        reporting = asyncio.create_task(server.report_restarts(house.say))
        stack.callback(reporting.cancel)
        await house.say(_started(recipe, folder))
        await supervisor.start(supervisor.startable())
        yield house


def joined(url: str, run: str, *, token: str = "", blobs: Path | None = None) -> Home:
    """The gateway and the engines that `areal serve` has started, wherever that is.

    Args:
        url: `nats://user:password@host:port`, as in the `bus.json` of the folder of what is served.
        run: its name there, which ends with `-serve`.
        token: instead of user and password, where the server has one token for all.
        blobs: the folder of that name beside `bus.json`, if this machine sees it: for messages beyond 256 KiB.
    """

    @asynccontextmanager
    async def opened(recipe: Recipe) -> AsyncIterator[Household]:
        bus = await NatsBus.connect(url, run, name=PROCESS, token=token, blobs=blobs)
        house = Household(bus, recipe, _place(recipe), prefix=f"loop-{secrets.token_hex(3)}-")
        lost = asyncio.ensure_future(bus.wait_lost())
        _first(house.failed, (lost,))
        try:
            await _refuse_unfit(bus, f"'{run}' at {without_credentials(url)}")
            yield house
        finally:
            await house.stop()
            lost.cancel()
            await bus.close()

    return opened


def joined_folder(folder: Path | str) -> Home:
    """Like `joined`, by the folder of what is served, `runs/NAME-serve`.

    Raises:
        SetupError: nothing is served from there.
    """
    place = RunFolder(Path(folder))
    try:
        server = place.server()
    except OSError as error:
        raise SetupError(f"{place.path} has no bus.json: nothing is served from there; start `areal serve RECIPE`") from error
    return joined(server.url, server.run, token=server.token, blobs=place.blobs)


async def _refuse_unfit(bus: Bus, where: str) -> None:
    """Only what is served can be joined, by one controller at a time: work goes to whoever takes it.

    Raises:
        SetupError: says what stands in the way.
    """
    async for envelope in bus.log():
        if envelope.subject == RunStarted.subject:
            if envelope.open(RunStarted).recipe.get("actors", {}).get("trainer", {}).get("count", 1):
                raise SetupError(f"{where} is a run with a trainer of its own; join what `areal serve RECIPE` has started")
            break
    await _gateway(bus, where)
    if other := await _heard(bus, "rollout_worker"):
        raise SetupError(
            f"{where} has been joined by another controller (process {other} rolls out for it); serve another, or close that one"
        )


async def _gateway(bus: Bus, where: str) -> None:
    """Wait for the gateway, which may be starting."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            await bus.request(DescribeGateway(), Stamp(id=uuid.uuid4().hex, sender=PROCESS, time=time.time()), timeout=PATIENCE_SECONDS)
        except NoResponder as error:
            if time.monotonic() > until:
                raise SetupError(f"{where} has no gateway now; is `areal serve` still running?") from error
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


async def _heard(bus: Bus, kind: str) -> int:
    """Process id of a living actor of this kind; 0 if none is heard of."""
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


def _started(recipe: Recipe, folder: RunFolder) -> RunStarted:
    return RunStarted(recipe=shown(recipe), profile="", reason="a hand-written loop", folder=str(folder.path))


def _place(recipe: Recipe) -> RunFolder:
    return RunFolder(Path(recipe.folder).absolute() / recipe.run)


@contextmanager
def _folder(recipe: Recipe) -> Iterator[RunFolder]:
    """A fresh folder for this loop; an earlier one of the same name is set aside.

    Raises:
        SetupError: a run or another loop of this name lives there, or it cannot be written.
    """
    folder = _place(recipe)
    with fresh_folder(recipe, folder, lambda given: given):
        if not structlog.is_configured():
            log_to_file(folder.log_of(PROCESS), PROCESS)
        yield folder


def _instances(recipe: Recipe, kind: str) -> list[str]:
    return [f"{kind}-{index}" for index in range(len(processes_of(getattr(recipe.actors, kind))))]


def _first(told: asyncio.Future[str], ends: Iterable[asyncio.Future[str]]) -> None:
    """The first of these reasons is the one that is told."""

    def over(end: asyncio.Future[str]) -> None:
        if not end.cancelled() and not told.done():
            told.set_result(end.result())

    for end in ends:
        end.add_done_callback(over)


def _leaf(error: BaseException | None) -> BaseException:
    """The first error within a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error or RolloutError("it ended without an error")
