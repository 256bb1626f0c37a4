"""Users of a running server come and go, without a pause for those that are connected."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

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


async def test_a_user_that_is_added_may_publish_and_one_that_is_removed_is_disconnected_for_good(tmp_path: Path) -> None:
    users = BusUsers.make(RUN, {"first": permissions("first")})
    keeper = await ServerKeeper.start(tmp_path, RestartSettings(), sync_interval="5s", users=users)
    try:
        address = keeper.server.address
        owner = await NatsBus.connect(keeper.server.url, RUN, name="owner", kinds=KINDS)
        first = await NatsBus.connect(users.url("first", address), RUN, name="first")
        with pytest.raises(ServerUnavailable, match="refused the credentials"):
            await NatsBus.connect(address.replace("//", "//joined.one:wrong@"), RUN, name="joined.one", connect_timeout=SECONDS)

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
