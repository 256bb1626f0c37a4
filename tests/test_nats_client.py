"""Subscriptions whose receivers are called while the socket is read, and publications that are written once a turn of
the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from nats.aio.client import Srv
from nats.aio.msg import Msg
from support.bus_cases import connected
from test_bus_restarts import killed_and_restarted, server

from areal_bus.nats_client import DirectClient
from areal_bus.server import EmbeddedServer

__all__ = ["server"]  # the fixture


async def received(messages: asyncio.Queue[Msg], count: int) -> list[Msg]:
    async with asyncio.timeout(300):
        return [await messages.get() for _ in range(count)]


async def test_messages_come_in_order_with_reply_subjects_and_headers(server: EmbeddedServer) -> None:
    async with connected(server) as here, connected(server) as there:
        messages: asyncio.Queue[Msg] = asyncio.Queue()
        await here._connection.receive("direct", messages.put_nowait)
        await here.barrier()
        for number in range(100):
            await there._connection.publish(
                "direct", b"%d" % number, reply="to.me", headers={"Number": str(number), "Text": "a: b"}
            )
        found = await received(messages, 100)
    assert [int(message.data) for message in found] == list(range(100))
    assert {message.reply for message in found} == {"to.me"}
    assert [message.headers for message in found] == [{"Number": str(number), "Text": "a: b"} for number in range(100)]


async def test_a_receiver_that_fails_ends_no_connection(server: EmbeddedServer) -> None:
    async with connected(server) as bus:
        messages: asyncio.Queue[Msg] = asyncio.Queue()

        def receive(message: Msg) -> None:
            if message.data == b"0":
                raise ValueError("this one cannot be received")
            messages.put_nowait(message)

        await bus._connection.receive("direct", receive)
        await bus.barrier()
        for number in range(2):
            await bus._connection.publish("direct", b"%d" % number)
        assert [message.data for message in await received(messages, 1)] == [b"1"]


async def test_a_subscription_ends_and_outlives_its_server(server: EmbeddedServer) -> None:
    async with connected(server) as bus:
        kept: asyncio.Queue[Msg] = asyncio.Queue()
        ended: asyncio.Queue[Msg] = asyncio.Queue()
        await bus._connection.receive("direct", kept.put_nowait)
        await bus._connection.unsubscribe(await bus._connection.receive("direct", ended.put_nowait))
        await killed_and_restarted(server)
        await bus.barrier()
        await bus._connection.publish("direct", b"later")
        assert [message.data for message in await received(kept, 1)] == [b"later"]
        assert ended.empty()


async def test_what_a_stopped_server_does_not_read_waits_for_it(server: EmbeddedServer) -> None:
    """More than the socket takes: the rest is written once the server reads again."""
    async with connected(server) as here, connected(server) as there:
        messages: asyncio.Queue[Msg] = asyncio.Queue()
        await here._connection.receive("direct", messages.put_nowait)
        await here.barrier()
        os.kill(server.pid, signal.SIGSTOP)
        for number in range(60):
            await there._connection.publish("direct", b"%d " % number + bytes(100_000))
            await asyncio.sleep(0)
        assert there._connection._client._unwritten() > 0
        os.kill(server.pid, signal.SIGCONT)
        found = await received(messages, 60)
    assert [int(message.data.partition(b" ")[0]) for message in found] == list(range(60))


async def test_an_attempt_to_connect_ends_with_a_cancellation_that_was_lost(server: EmbeddedServer) -> None:
    client = DirectClient()
    connecting = asyncio.Event()

    async def attempt_again() -> None:
        connecting.set()
        with suppress(asyncio.CancelledError):  # as `asyncio.wait_for` does if its future ends at the same time
            await asyncio.sleep(300)
        await client._connect_to_server(Srv(urlsplit("nats://127.0.0.1:9")))

    task = asyncio.create_task(attempt_again())
    await connecting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
