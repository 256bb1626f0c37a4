"""The history of a run's folder: written from its log, brought up to date when the log has grown, never read twice."""

from __future__ import annotations

import asyncio
import io
import shutil

import aiohttp
import msgspec
import pytest
from rich.console import Console
from support.audit_logs import sound_log
from support.live_run import ROOT
from support.page_server import page_of, until_ended
from test_history import all_rows, in_memory
from test_reader import exported_log, printed

from areal_actors.core.devices import CudaDevices
from areal_actors.folder.run_folder import RunFolder
from areal_actors.history.database import DATABASE
from areal_actors.messages import KINDS, ActorStarted, RunResumed, RunStarted, WeightsPublished
from areal_actors.reader import log_events
from areal_actors.reader.episode_page import show
from areal_actors.reader.recorded_history import read_history
from areal_actors.recipe.load import load
from areal_actors.replay.why import why
from areal_bus import read_log
from areal_bus.base import Stamp
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

RESOLVED = load(
    [ROOT / "recipes" / "gsm8k_grpo.toml"], ["profile=embedded", "run=a", "algorithm.group_size=2"], CudaDevices(0, "")
).recipe


@pytest.fixture
def place(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.create(RESOLVED)
    return folder


def events():
    """A sound log with a whole recipe, and without a model: its tokens have no texts."""
    return [_with_recipe(event) for event in sound_log()]


def _with_recipe(event):
    if isinstance(event, RunStarted | RunResumed):
        return msgspec.structs.replace(event, recipe=msgspec.to_builtins(RESOLVED))
    if isinstance(event, WeightsPublished):
        return msgspec.structs.replace(event, location=msgspec.structs.replace(event.location, model=""))
    return event


async def publish(place, added, *, first=1):
    """Add events to the log of a run's folder."""
    server = await EmbeddedServer.start(place.nats)
    bus = await NatsBus.connect(server.url, "a", name="test", token=server.token, blobs=place.blobs)
    await bus.provision(KINDS)
    for number, event in enumerate(added, start=first):
        await bus.publish(event, Stamp(id=f"m{number}", sender="test", time=1.7e9 + number))
    await bus.close()
    await server.stop()


def rows_of(place):
    history = read_history(place)
    rows = {name: found for name, found in all_rows(history).items() if name not in ("progress", "answer")}
    history.close()
    return rows


def expected(tmp_path, wanted):
    history = in_memory(read_log(exported_log(tmp_path / "whole.log", wanted)))
    return {name: found for name, found in all_rows(history).items() if name not in ("progress", "answer")}


async def test_a_log_is_read_once_and_again_only_when_it_has_grown(place, tmp_path, monkeypatch):
    await publish(place, events()[:20])
    assert rows_of(place) == expected(tmp_path, events()[:20])
    with monkeypatch.context() as patch:
        patch.setattr(log_events, "open_log", None)
        assert rows_of(place) == expected(tmp_path, events()[:20])
    await publish(place, events()[20:], first=21)
    assert rows_of(place) == expected(tmp_path, events())


async def test_a_run_that_was_restarted_from_scratch_in_its_folder_has_no_rows_of_the_earlier(place, tmp_path):
    await publish(place, events())
    rows_of(place)
    kept = (place.path / DATABASE).read_bytes()
    shutil.rmtree(place.nats)
    others = [*events()[:30], *(ActorStarted(actor=f"a{number}", process="p", pid=number) for number in range(30))]
    await publish(place, others, first=1000)
    (place.path / DATABASE).write_bytes(kept)
    history = read_history(place)
    assert history.query("SELECT count(*) FROM actor") == [30]
    assert history.progress.last == len(others)
    assert history.query("SELECT max(step) FROM step") == history.query(
        "SELECT count(*) FROM step WHERE replaced IS NULL"
    )


async def test_a_folder_and_its_exported_log_are_shown_alike(place, tmp_path):
    await publish(place, events())
    log = exported_log(tmp_path / "a.log", events())
    for words in ((), ("4.0",), ("3.0",)):
        assert printed(show, "a", *words, folder=place.path.parent) == printed(show, str(log), *words, folder=tmp_path)
    as_json = {"as_json": True, "folder": place.path.parent}
    assert printed(show, "a", **as_json) == printed(show, str(log), **as_json)


async def test_why_answers_the_same_from_log_and_history(place, tmp_path, capsys, monkeypatch):
    await publish(place, events())
    log = exported_log(tmp_path / "a.log", events())
    explained = lambda: why("a", folder=place.path.parent)  # noqa: E731
    assert await asyncio.to_thread(explained) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr("areal_actors.replay.log_findings.log_of", None)
    assert await asyncio.to_thread(explained) == 0
    assert capsys.readouterr().out == first
    monkeypatch.undo()
    assert await asyncio.to_thread(lambda: why(str(log), folder=place.path.parent)) == 0
    assert capsys.readouterr().out == first


async def test_of_a_damaged_log_the_rows_before_the_damage_are_there_and_every_command_names_it(place):
    await publish(place, events())
    (store,) = place.nats.glob("**/*_LOG/msgs/*.blk")
    content = bytearray(store.read_bytes())
    content[len(content) // 2] ^= 0xFF
    store.write_bytes(content)
    for _ in range(2):
        screen = io.StringIO()
        show("a", folder=place.path.parent, console=Console(file=screen, width=100))
        assert "only the first" in screen.getvalue()


async def test_a_page_begins_with_the_database_reads_what_it_lacks_and_stores_that(place, tmp_path):
    await publish(place, events()[:20])
    read_history(place).close()
    await publish(place, events()[20:], first=21)
    async with page_of(tmp_path, place=place) as (_, source, __):
        assert source.history.progress.last == 20
        await until_ended(source)
        rows = source.tables.rows_changed_after(0)
        assert source.copied == source.history.progress.last == len(events())
        assert source.tables.facts().finished
    assert rows_of(place) == expected(tmp_path, events())
    async with page_of(tmp_path, place=place) as (url, source, _):
        await until_ended(source)
        assert msgspec.json.encode(source.tables.rows_changed_after(0)) == msgspec.json.encode(rows)
        assert source.copied == 0, "the log is read only when a detail is asked for"
        number = next(row.id for row in rows["episodes"] if row.outcome == "exported")
        async with aiohttp.ClientSession() as session, session.get(f"{url}api/episode/{number}") as answer:
            assert (await answer.json())["calls"]
        assert source.copied == len(events())


async def test_a_page_does_not_mix_a_database_with_the_log_of_another_run(place, tmp_path):
    await publish(place, events())
    read_history(place).close()
    shutil.rmtree(place.nats)
    other = events()[:12]
    server = await EmbeddedServer.start(place.nats)
    bus = await NatsBus.connect(server.url, "a", name="test", token=server.token, blobs=place.blobs)
    await bus.provision(KINDS)
    for number, event in enumerate(other, start=1):
        await bus.publish(event, Stamp(id=f"other{number}", sender="test", time=1.8e9 + number))
    await bus.close()
    await server.stop()
    async with page_of(tmp_path, place=place) as (_, source, __):
        await until_ended(source)
        assert source.history.progress.last == len(other)
        assert source.history.progress.last_id == f"other{len(other)}"
        assert source.notice == ""
