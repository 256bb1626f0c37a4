"""Monitors of a run's bus: they receive all messages, and can change nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import nats
import pytest
from rich.console import Console
from support import story
from test_bus_permissions import RUN, run_server, stamp

from areal_actors.display.monitor import attach
from areal_actors.folder.run_folder import ServerAddress
from areal_actors.messages import (
    KINDS,
    DescribeSession,
    RunFinished,
    RunStopping,
)
from areal_bus.base import Envelope, Stamp
from areal_bus.errors import NoResponder
from areal_bus.message import Message
from areal_bus.nats import NatsBus
from areal_bus.users import MONITOR


async def test_a_monitor_that_receives_a_request_does_not_count_as_responder(tmp_path: Path) -> None:
    async with run_server(tmp_path) as (server, users, owner):
        client = await nats.connect(users.url(MONITOR, server.address), inbox_prefix="_INBOX.monitor")
        received: asyncio.Queue[str] = asyncio.Queue()

        async def on_message(message: nats.aio.msg.Msg) -> None:
            received.put_nowait(message.subject)

        await client.subscribe(f"areal.{RUN}.>", cb=on_message)
        for _ in range(2):
            await client.flush()
        with suppress(NoResponder, TimeoutError):
            await owner.request(DescribeSession(session="s"), stamp(), timeout=1)
        assert await asyncio.wait_for(received.get(), 300) == f"areal.{RUN}.{DescribeSession.subject}"
        await client.close()


async def test_a_monitor_cannot_have_the_server_publish_for_it(tmp_path: Path) -> None:
    """The server answers to whatever reply subject a question names: in an account of its own, that leads nowhere."""
    async with run_server(tmp_path) as (server, users, owner):
        await owner.publish(RunStopping(reason="once"), stamp())
        client = await nats.connect(users.url(MONITOR, server.address), inbox_prefix="_INBOX.monitor")
        question = json.dumps({"seq": 1}).encode()
        log = f"$JS.API.DIRECT.GET.AREAL_{RUN}_LOG"
        for reply in (f"areal.{RUN}.run.stopping", f"areal.{RUN}.episode.run", "_INBOX.gateway.answers.x.1"):
            await client.publish(log, question, reply=reply)
        answer = await client.request(log, question, timeout=300)
        assert answer.headers is not None
        assert answer.headers["Nats-Sequence"] == "1"
        assert [envelope.sequence async for envelope in owner.log()] == [1]
        await client.close()


async def test_a_monitor_follows_a_run_over_a_restart_of_the_server(tmp_path: Path) -> None:
    envelopes = list(story.whole_run())
    async with run_server(tmp_path) as (server, users, owner):
        bus = await NatsBus.connect(users.url(MONITOR, server.address), RUN, name="monitor")
        seen: list[str] = []

        async def follow() -> None:
            async for envelope in bus.log(follow=True):
                seen.append(envelope.id)
                if len(seen) == len(envelopes):
                    return

        following = asyncio.create_task(follow())
        for envelope in envelopes[: len(envelopes) // 2]:
            await publish(owner, envelope)
        os.kill(server.pid, signal.SIGKILL)
        again = await server.restart()
        try:
            for envelope in envelopes[len(envelopes) // 2 :]:
                await publish(owner, envelope)
            await asyncio.wait_for(following, 300)
            assert seen == [envelope.id for envelope in envelopes]
        finally:
            await bus.close()
            await owner.close()
            await again.stop()


async def publish(bus: NatsBus, envelope: Envelope) -> None:
    """An event of a story."""
    by_subject = {kind.subject: kind for kind in KINDS}
    body: Message = envelope.open(by_subject[envelope.subject])
    await bus.publish(body, Stamp(id=envelope.id, sender=envelope.sender, time=envelope.time))


async def test_areal_monitor_needs_no_more_than_monitor_json(tmp_path: Path) -> None:
    async with run_server(tmp_path / "nats") as (server, users, owner):
        for envelope in story.whole_run():
            await publish(owner, envelope)
        handed_out = tmp_path / "handed-out.json"
        handed_out.write_bytes(
            msgspec.json.encode(ServerAddress(url=users.url(MONITOR, server.address), run=RUN, pid=0))
        )
        console = Console(width=100, file=io.StringIO())
        assert await asyncio.wait_for(asyncio.to_thread(attach, bus=handed_out, console=console), 300) == 0
        assert console.file.getvalue().splitlines()[-1].endswith("finished after 40 steps")


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_monitor_of_another_host_ends_with_the_run(tmp_path: Path, *, as_json: bool) -> None:
    async with run_server(tmp_path / "nats") as (server, users, owner):
        handed_out = tmp_path / "handed-out.json"
        handed_out.write_bytes(
            msgspec.json.encode(ServerAddress(url=users.url(MONITOR, server.address), run=RUN, pid=0))
        )
        console = Console(width=100, file=io.StringIO())
        attached = partial(attach, bus=handed_out, console=console, subjects="step.>", as_json=as_json)
        watching = asyncio.create_task(asyncio.to_thread(attached))
        async with asyncio.timeout(300):
            while not watching.done():
                await owner.publish(RunFinished(steps=40), stamp())
                await asyncio.wait({watching}, timeout=0.2)
        assert await watching == 0
