"""`log.encrypt` with the genuine nats-server: no file of its store has a text of the log, no start is without key."""

from __future__ import annotations

import pytest
from support.samples import SAMPLING

from areal_actors.core.values import Task
from areal_actors.messages import KINDS, FeedbackGiven, RunEpisode
from areal_bus.base import Stamp
from areal_bus.errors import ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer
from areal_bus.store_key import begin_encrypted, is_encrypted

TEXT = "a sentence for its reader alone"
KEY = "0123456789abcdef-secret"


def files_with(folder, text):
    return [path for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


async def write(server):
    """A log with a text, a work item with one, and a value."""
    bus = await NatsBus.connect(server.url, "run", name="supervisor", token=server.token, kinds=KINDS)
    given = FeedbackGiven(id="one", session="s", kind="edit", text=TEXT)
    await bus.publish(given, Stamp(id="1", sender="test", time=0.0))
    task = Task(id="t", data={"question": TEXT})
    work = RunEpisode(episode="0.0", group="0", task=task, sampling=SAMPLING)
    await bus.publish(work, Stamp(id="2", sender="test", time=0.0))
    await bus.put("value", TEXT.encode())
    await bus.close()


async def texts(server):
    bus = await NatsBus.connect(server.url, "run", name="supervisor", token=server.token)
    try:
        return [envelope.open(FeedbackGiven).text async for envelope in bus.log()], await bus.get("value")
    finally:
        await bus.close()


@pytest.mark.parametrize("by_file", [False, True])
async def test_no_file_of_an_encrypted_store_has_the_text_or_the_key(tmp_path, monkeypatch, by_file):
    folder, key = tmp_path / "nats", tmp_path / "key"
    key.write_text(f"{KEY}\n")
    monkeypatch.setenv("AREAL_STORE_KEY_FILE" if by_file else "AREAL_STORE_KEY", str(key) if by_file else KEY)
    begin_encrypted(folder)
    server = await EmbeddedServer.start(folder)
    await write(server)
    assert files_with(folder, b"JSON") == files_with(folder, TEXT.encode()) == files_with(folder, KEY.encode()) == []
    server = await server.restart()
    assert await texts(server) == ([TEXT], TEXT.encode())
    await server.stop()
    assert is_encrypted(folder)
    assert files_with(folder, TEXT.encode()) == files_with(folder, KEY.encode()) == []
    monkeypatch.delenv("AREAL_STORE_KEY_FILE" if by_file else "AREAL_STORE_KEY")
    with pytest.raises(ServerUnavailable, match="the log is encrypted, and there is no key: set AREAL_STORE_KEY"):
        await EmbeddedServer.start(folder)
    monkeypatch.setenv("AREAL_STORE_KEY", KEY[::-1])
    with pytest.raises(ServerUnavailable, match="was encrypted with another key"):
        await EmbeddedServer.start(folder)


async def test_without_encryption_the_same_files_have_the_text(tmp_path):
    server = await EmbeddedServer.start(tmp_path)
    await write(server)
    await server.stop()
    assert len(files_with(tmp_path, TEXT.encode())) >= 1


async def test_a_log_that_was_begun_without_a_key_is_not_encrypted_later(tmp_path, monkeypatch):
    server = await EmbeddedServer.start(tmp_path)
    await server.stop()
    monkeypatch.setenv("AREAL_STORE_KEY", KEY)
    with pytest.raises(ServerUnavailable, match="was begun without encryption"):
        begin_encrypted(tmp_path)


@pytest.mark.parametrize(("key", "found"), [("", "no key"), ("short", "a key of 5 characters")])
def test_a_missing_or_short_key_is_named(tmp_path, monkeypatch, key, found):
    monkeypatch.setenv("AREAL_STORE_KEY", key)
    with pytest.raises(ServerUnavailable, match=found):
        begin_encrypted(tmp_path)
