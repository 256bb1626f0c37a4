"""Shared by the tests of the bus: messages, both buses, short waits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
import nats

from areal_bus import Bus, Delivery, Envelope, Event, MemoryBus, Message, Reply, Request, Stamp, Telemetry, Work
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer


class Happened(Event):
    subject: ClassVar[str] = "thing.happened"
    n: int
    load: bytes = b""


class HappenedNewer(Event):
    """The same event, as a later version of the program publishes it."""

    subject: ClassVar[str] = "thing.happened"
    n: int
    mood: str


class Ended(Event):
    subject: ClassVar[str] = "thing.ended"
    n: int


class Do(Work):
    subject: ClassVar[str] = "thing.do"
    n: int


class Doubled(Reply):
    subject: ClassVar[str] = "number.doubled"
    n: int


class Double(Request[Doubled]):
    subject: ClassVar[str] = "number.double"
    reply: ClassVar[type[Reply]] = Doubled
    n: int
    load: bytes = b""


class Progress(Telemetry):
    subject: ClassVar[str] = "thing.progress"
    n: int


KINDS: tuple[type[Message], ...] = (Happened, Ended, Do, Doubled, Double, Progress)

_ids = itertools.count()


def stamp(name: str = "") -> Stamp:
    return Stamp(id=name or f"message-{next(_ids)}", sender="tester", time=1.5, cause="because")


async def take(inbox: AsyncIterator[Delivery], count: int, *, acknowledge: bool = False) -> list[Delivery]:
    """The next `count` deliveries."""
    async with asyncio.timeout(300):
        deliveries = [await anext(inbox) for _ in range(count)]
    if acknowledge:
        for delivery in deliveries:
            await delivery.acknowledge()
    return deliveries


async def no_delivery(inbox: AsyncIterator[object], seconds: float = 0.1) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await anext(inbox)
    except TimeoutError:
        return True
    return False


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [delivery.message.n for delivery in deliveries]  # type: ignore[attr-defined]


LEASE = 0.3


class Buses(NamedTuple):
    """The bus as two processes see it."""

    here: Bus
    there: Bus
    append_damaged: Callable[[Happened], Awaitable[None]]


@asynccontextmanager
async def _in_memory() -> AsyncIterator[Buses]:
    bus = MemoryBus(lease_seconds=LEASE)

    async def append_damaged(event: Happened) -> None:
        place = await bus.publish(event, stamp())
        msgspec.structs.force_setattr((await bus.read([place]))[0], "checksum", 1)

    yield Buses(bus, bus, append_damaged)


@asynccontextmanager
async def _over_nats(folder: Path, *, shares_log: bool) -> AsyncIterator[Buses]:
    server = await EmbeddedServer.start(folder / "server")
    options = {
        "kinds": KINDS,
        "blobs": folder / "blobs",
        "lease_seconds": LEASE,
        "retry_for_seconds": 2,
        "shares_log": shares_log,
    }
    here, there = [
        await NatsBus.connect(server.url, "test", name=name, token=server.token, **options)
        for name in ("here", "there")
    ]

    async def append_damaged(event: Happened) -> None:
        envelope = msgspec.structs.replace(Envelope.seal(event, stamp(), "test"), checksum=1)
        async with await nats.connect(server.url, token=server.token) as client:
            await client.jetstream().publish("areal.test.thing.happened", msgspec.msgpack.encode(envelope))

    yield Buses(here, there, append_damaged)
    await here.close()
    await there.close()
    await server.stop()


def open_buses(which: str, folder: Path) -> AbstractAsyncContextManager[Buses]:
    """Both sides of the bus in memory, or of one over a real server that keeps its store in the folder (`shared`: each
    shares a reader)."""
    return _in_memory() if which == "memory" else _over_nats(folder, shares_log=which == "shared")


@asynccontextmanager
async def connected(
    server: EmbeddedServer, blobs: Path | None = None, retry_for_seconds: float = 10
) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(
        server.url,
        "test",
        name="tester",
        token=server.token,
        kinds=KINDS,
        blobs=blobs,
        lease_seconds=LEASE,
        retry_for_seconds=retry_for_seconds,
    )
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def doubling(
    bus: Bus, address: str = "doubler-0", group: str = "doubler", parts: int = 1
) -> AsyncIterator[list[int]]:
    """Answers `Double`; the list has the requests."""
    asked: list[int] = []

    async def serve(inbox: AsyncIterator[object]) -> None:
        async for delivery in inbox:
            number = delivery.message.n  # type: ignore[attr-defined]
            asked.append(number)
            for part in range(1, parts + 1):
                await bus.reply(delivery.reply_to, Doubled(n=2 * number * part), stamp(), last=part == parts)  # type: ignore[attr-defined]

    async with bus.requests(Double, group=group, address=address) as inbox:
        serving = asyncio.create_task(serve(inbox))
        try:
            yield asked
        finally:
            serving.cancel()
