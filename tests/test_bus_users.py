"""Users of a running server come and go, without a pause for those that are connected."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Self

import pytest

from areal_actors.messages import KINDS, ActorStopped
from areal_bus.base import Stamp
from areal_bus.errors import ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server_keeper import RestartSettings, ServerKeeper
from areal_bus.users import BusUsers, Permissions

RUN = "run"
SECONDS = 60.0


def stamp() -> Stamp:
    return Stamp(id=os.urandom(8).hex(), sender="test", time=time.time())


def permissions(user: str) -> Permissions:
    return Permissions(publish=(f"areal.{RUN}.{ActorStopped.subject}",), subscribe=(f"_INBOX.{user}.>",))


STOPPED = ActorStopped(actor="a", process="a")


async def test_a_user_that_is_added_may_publish_and_one_that_is_removed_is_disconnected_for_good(
    tmp_path: Path,
) -> None:
    users = BusUsers.make(RUN, {"first": permissions("first")})
    keeper = await ServerKeeper.start(tmp_path, RestartSettings(), sync_interval="5s", users=users)
    try:
        address = keeper.server.address
        owner = await NatsBus.connect(keeper.server.url, RUN, name="owner", kinds=KINDS)
        first = await NatsBus.connect(users.url("first", address), RUN, name="first")
        with pytest.raises(ServerUnavailable, match="refused the credentials"):
            await NatsBus.connect(
                address.replace("//", "//joined.one:wrong@"), RUN, name="joined.one", connect_timeout=SECONDS
            )

        async def publish_meanwhile() -> None:
            for _ in range(500):
                await first.publish(STOPPED, stamp())

        publishing = asyncio.create_task(publish_meanwhile())
        more = users.with_user("joined.one", permissions("joined.one"))
        await keeper.set_users(more)
        joined = await NatsBus.connect(more.url("joined.one", address), RUN, name="joined.one")
        await joined.publish(STOPPED, stamp())
        await publishing
        assert not (tmp_path / "nats-server.conf").exists()

        await keeper.set_users(more.without_user("joined.one"))
        async with asyncio.timeout(SECONDS):
            assert "Authorization Violation" in await joined.wait_lost()
        await first.publish(STOPPED, stamp())
        assert len([envelope async for envelope in owner.log()]) == 502
        for bus in (owner, first, joined):
            await bus.close()
    finally:
        await keeper.stop()


async def test_a_restarted_server_has_the_users_that_came_later(tmp_path: Path) -> None:
    users = BusUsers.make(RUN, {})
    keeper = await ServerKeeper.start(tmp_path, RestartSettings(), sync_interval="5s", users=users)
    try:
        owner = await NatsBus.connect(keeper.server.url, RUN, name="owner", kinds=KINDS)
        more = users.with_user("joined.one", permissions("joined.one"))
        await keeper.set_users(more)
        keeper.server.kill()
        async with asyncio.timeout(SECONDS):
            await keeper.outages.get()
        joined = await NatsBus.connect(more.url("joined.one", keeper.server.address), RUN, name="joined.one")
        assert await joined.publish(STOPPED, stamp()) == 1
        await keeper.set_users(more.with_user("joined.two", permissions("joined.two")))
        for bus in (owner, joined):
            await bus.close()
    finally:
        await keeper.stop()


class SlowLogin:
    """A relay whose first connections send the server nothing until they are released: a login that takes its time."""

    def __init__(self, port: int, held: int) -> None:
        self.target, self.held = port, held
        self.waiting, self.released = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, *(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers |= {writer, onward}
        held, self.held = self.held > 0, self.held - 1
        self._tasks |= {
            asyncio.create_task(self._pump(reader, onward, held)),
            asyncio.create_task(self._pump(there, writer, held=False)),
        }

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: bool) -> None:  # noqa: FBT001
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if held:
                    self.waiting.set()
                    await self.released.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.mark.parametrize("reconnects", [False, True])
async def test_a_login_that_other_users_interrupt_is_repeated(tmp_path: Path, reconnects: bool) -> None:  # noqa: FBT001
    """A server that loads other users refuses every connection that has not logged in yet."""
    users = BusUsers.make(RUN, {"first": permissions("first")})
    keeper = await ServerKeeper.start(tmp_path, RestartSettings(), sync_interval="5s", users=users)
    try:
        owner = await NatsBus.connect(keeper.server.url, RUN, name="owner", kinds=KINDS)
        async with SlowLogin(keeper.server.port, held=0 if reconnects else 1) as relay, asyncio.timeout(SECONDS):
            address = users.url("first", keeper.server.address).replace(f":{keeper.server.port}", f":{relay.port}")
            connecting = asyncio.create_task(NatsBus.connect(address, RUN, name="first", connect_timeout=SECONDS))
            if reconnects:
                first = await connecting
                relay.held = 1
                await first._connection._client.force_reconnect()
            await relay.waiting.wait()
            await keeper.set_users(users.with_user("joined.one", permissions("joined.one")))
            relay.released.set()
            first = await connecting
            await first.publish(STOPPED, stamp())
            assert len([envelope async for envelope in owner.log()]) == 1
            await first.close()
        await owner.close()
    finally:
        await keeper.stop()
