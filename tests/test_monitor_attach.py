"""`areal-actors view --terminal` and `areal-actors export` from a second terminal: finding runs, attaching late, and
the end of a run."""

import asyncio
import contextlib
import io
import json
import os
import time
from pathlib import Path

import aiohttp
import msgspec
import pytest
from rich.console import Console
from support import story
from support.clock import until

from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import SetupError
from areal_actors.display import monitor
from areal_actors.display.monitor import attach, export
from areal_actors.folder import connections
from areal_actors.folder.connections import find_live
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.messages import KINDS
from areal_actors.recipe.load import load
from areal_bus.base import Stamp
from areal_bus.errors import BusError
from areal_bus.nats import NatsBus
from areal_bus.recorded import read_log
from areal_bus.server import EmbeddedServer

ROOT = Path(__file__).parent.parent
BY_SUBJECT = {kind.subject: kind for kind in KINDS}


async def publish(bus, envelope):
    await bus.publish(
        envelope.open(BY_SUBJECT[envelope.subject]), Stamp(id=envelope.id, sender=envelope.sender, time=envelope.time)
    )


def announce(folder, run, pid, seconds_ago):
    (folder / run).mkdir(parents=True)
    path = folder / run / "bus.json"
    path.write_bytes(msgspec.json.encode({"url": "nats://127.0.0.1:1", "token": "t", "run": run, "pid": pid}))
    os.utime(path, (time.time() - seconds_ago,) * 2)


def test_the_run_started_last_is_found_without_a_name(tmp_path):
    announce(tmp_path, "old", os.getpid(), 60)
    announce(tmp_path, "new", os.getpid(), 1)
    with RunFolder(tmp_path / "old").hold(), RunFolder(tmp_path / "new").hold():
        assert find_live("", tmp_path).path == tmp_path / "new"
        assert find_live("old", tmp_path).path == tmp_path / "old"


def test_a_missing_live_run_is_reported(tmp_path):
    with pytest.raises(
        SetupError, match=rf"^no run is live in {tmp_path}/none; start one with `areal-actors run RECIPE`$"
    ):
        find_live("", tmp_path / "none")
    announce(tmp_path, "dead", os.getpid(), 1)
    with pytest.raises(
        SetupError, match=r"^run 'dead' is not live; its metrics are in .*/dead/metrics.jsonl; no run is live in "
    ):
        find_live("dead", tmp_path)
    announce(tmp_path, "alive", os.getpid(), 1)
    with (
        RunFolder(tmp_path / "alive").hold(),
        pytest.raises(SetupError, match=r"^run 'other' is not live; live there: alive$"),
    ):
        find_live("other", tmp_path)


def test_what_has_no_log_cannot_be_exported(tmp_path):
    with pytest.raises(SetupError, match="holds no log"):
        export("nothing", tmp_path / "file", folder=tmp_path)


async def test_the_log_of_a_run_that_is_ending_is_read_from_its_store(tmp_path):
    async with live_run(tmp_path) as (bus, server, over):
        here = RunFolder(tmp_path / "gsm8k-grpo")
        await publish(bus, story.sealed(story.STARTED))
        here.withdraw()

        async def subjects():
            async with connections.open_log(here) as found:
                return [envelope.subject async for envelope in found.log()]

        reading = asyncio.create_task(subjects())
        await asyncio.sleep(0.3)
        assert not reading.done(), "its supervisor is alive"
        await bus.close()
        await server.stop()
        over.close()
        assert await asyncio.wait_for(reading, 300) == [story.STARTED.subject]


async def test_a_live_run_without_an_address_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "CHANGE_SECONDS", 0.2)
    async with live_run(tmp_path):
        here = RunFolder(tmp_path / "gsm8k-grpo")
        here.withdraw()
        with pytest.raises(
            SetupError, match=r"has had no address for .* though its supervisor is alive; see the run's logs"
        ):
            async with connections.open_log(here):
                pass


@contextlib.asynccontextmanager
async def live_run(folder):
    """A run with a server of its own, as its supervisor announces it; closing the third value ends the supervisor."""
    recipe = load([ROOT / "recipes" / "gsm8k_grpo.toml"], ["profile=embedded"], detect_cuda()).recipe
    here = RunFolder(folder / recipe.run)
    with contextlib.ExitStack() as over, pytest.MonkeyPatch.context() as settings:
        settings.setattr(monitor, "DRAIN_SECONDS", 0.02)
        over.enter_context(here.hold())
        here.create(recipe)
        server = await EmbeddedServer.start(here.nats)
        bus = await NatsBus.connect(
            server.url, recipe.run, name="supervisor", token=server.token, kinds=KINDS, blobs=here.blobs
        )
        here.announce(ServerAddress(url=server.url, token=server.token, run=recipe.run, pid=os.getpid()))
        try:
            yield bus, server, over
        finally:
            await bus.close()
            await server.stop()
            (here.path / "bus.json").unlink(missing_ok=True)


async def test_a_late_attach_shows_the_whole_history_and_leaves_at_the_end(tmp_path):
    envelopes = list(story.whole_run())
    async with live_run(tmp_path) as (bus, _, _):
        for envelope in envelopes[:-1]:
            await publish(bus, envelope)
        console = Console(width=100, file=io.StringIO())
        attached = asyncio.create_task(asyncio.to_thread(attach, folder=tmp_path, console=console))
        await until(lambda: console.file.getvalue().count(": reward ") == 40)
        assert not attached.done()
        await publish(bus, envelopes[-1])
        assert await asyncio.wait_for(attached, 300) == 0
        assert console.file.getvalue().splitlines()[-1].endswith("finished after 40 steps")


async def test_an_attached_monitor_ends_when_the_supervisor_is_gone(tmp_path):
    async with live_run(tmp_path) as (bus, _, over):
        await publish(bus, story.sealed(story.STARTED))
        console = Console(width=100, file=io.StringIO())
        attached = asyncio.create_task(asyncio.to_thread(attach, "gsm8k-grpo", folder=tmp_path, console=console))
        await until(lambda: "run started" in console.file.getvalue())
        over.close()
        with pytest.raises(BusError, match="run 'gsm8k-grpo' has ended: its supervisor is gone"):
            await asyncio.wait_for(attached, 300)


async def test_chosen_messages_are_printed_until_the_run_is_over(tmp_path):
    async with live_run(tmp_path) as (bus, _, over):
        await publish(bus, story.stepped(1))
        console = Console(width=100, file=io.StringIO())
        attached = asyncio.create_task(
            asyncio.to_thread(attach, "gsm8k-grpo", folder=tmp_path, subjects="*.completed", console=console)
        )
        await until(lambda: console.file.getvalue().count("\n") == 1)
        await publish(bus, story.exported())
        await publish(bus, story.stepped(2))
        await until(lambda: console.file.getvalue().count("\n") == 2)
        over.close()
        with pytest.raises(BusError, match="has ended"):
            await asyncio.wait_for(attached, 300)
        lines = console.file.getvalue().splitlines()
        assert len(lines) == 2
        assert all(
            f' step.completed from somebody: {{"step": {step}' in line for step, line in enumerate(lines, start=1)
        )


async def test_the_log_of_a_run_is_exported_while_it_lives_and_afterwards(tmp_path, capsys):
    envelopes = list(story.whole_run())
    async with live_run(tmp_path) as (bus, _, _):
        for envelope in envelopes[:50]:
            await publish(bus, envelope)
        await asyncio.to_thread(export, "gsm8k-grpo", tmp_path / "live.log", folder=tmp_path)
    await asyncio.to_thread(export, "gsm8k-grpo", tmp_path / "over.log", folder=tmp_path)
    logs = [[envelope.id for envelope in read_log(tmp_path / name)] for name in ("live.log", "over.log")]
    assert logs[0] == logs[1] == [envelope.id for envelope in envelopes[:50]]
    assert "50 events of run 'gsm8k-grpo' written to" in capsys.readouterr().out


async def test_json_ends_with_the_run_as_data_ends(tmp_path, capsys):
    async with live_run(tmp_path) as (bus, _, over):
        await publish(bus, story.stepped(1))
        attached = asyncio.create_task(asyncio.to_thread(attach, "gsm8k-grpo", folder=tmp_path, as_json=True))
        await asyncio.sleep(0.5)
        over.close()
        assert await asyncio.wait_for(attached, 300) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["message"]["step"] == 1
    assert "run 'gsm8k-grpo' has ended" in err


async def test_prometheus_reads_the_whole_run_until_it_ends(tmp_path, capsys):
    envelopes = list(story.whole_run())
    async with live_run(tmp_path) as (bus, _, _), aiohttp.ClientSession() as client:
        for envelope in envelopes[:-1]:
            await publish(bus, envelope)
        attached = asyncio.create_task(asyncio.to_thread(attach, "gsm8k-grpo", folder=tmp_path, prometheus="0"))
        announced = ""
        async with asyncio.timeout(300):
            while "metrics at " not in announced:
                await asyncio.sleep(0.05)
                announced += capsys.readouterr().err
        url = announced.partition("metrics at ")[2].partition(",")[0]
        text = ""
        async with asyncio.timeout(300):
            while 'areal_steps_total{run="gsm8k-grpo"} 40.0' not in text:
                async with client.get(url) as answer:
                    text = await answer.text()
        assert 'areal_step{metric="reward_mean",run="gsm8k-grpo"}' in text
        await publish(bus, envelopes[-1])
        assert await asyncio.wait_for(attached, 300) == 0
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.get(url)
