"""A nats-server that dies or no longer answers is started again in place; what a restart cannot help ends in one
sentence."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from support.bus_cases import KINDS, Double, Doubled, Happened, numbers, stamp, take

from areal_bus import server_keeper
from areal_bus.base import Subscription
from areal_bus.errors import AnswerLost, LogUnavailable, ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer, find_binary
from areal_bus.server_keeper import Outage, RestartSettings, ServerKeeper


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are asked for their health three times a second."""
    monkeypatch.setattr(server_keeper, "PROBE_SECONDS", 0.3)


UNANSWERED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""nats-py forgets a connection that was not answered."""


@asynccontextmanager
async def kept(folder: Path, settings: RestartSettings | None = None) -> AsyncIterator[ServerKeeper]:
    keeper = await ServerKeeper.keep(await EmbeddedServer.start(folder), settings)
    try:
        yield keeper
    finally:
        await keeper.stop()


@asynccontextmanager
async def joined(keeper: ServerKeeper, retry_for_seconds: float = 30.0) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(
        keeper.server.url,
        "test",
        name="tester",
        token=keeper.server.token,
        kinds=KINDS,
        retry_for_seconds=retry_for_seconds,
    )
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def harness(folder: Path) -> AsyncIterator[tuple[ServerKeeper, NatsBus, NatsBus, Subscription]]:
    """A server, one that asks, and one that serves questions."""
    async with AsyncExitStack() as stack:
        keeper = await stack.enter_async_context(kept(folder))
        asker, server = [await stack.enter_async_context(joined(keeper)) for _ in range(2)]
        yield keeper, asker, server, await stack.enter_async_context(server.requests(Double, group="g", address="g-0"))


async def stop(pid: int) -> None:
    """Stop a process, and wait until none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    await until(
        lambda: all(thread.joinpath("stat").read_text().rpartition(") ")[2][0] in "tT" for thread in threads.iterdir())
    )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not holds():  # noqa: ASYNC110 - what another process does sets no event
            await asyncio.sleep(0.05)


async def next_outage(keeper: ServerKeeper) -> Outage:
    async with asyncio.timeout(300):
        return await keeper.outages.get()


async def test_a_killed_server_is_started_again_where_clients_find_it(tmp_path: Path) -> None:
    async with kept(tmp_path) as keeper, joined(keeper) as bus:
        address, first = (keeper.server.url, keeper.server.token), keeper.server.pid
        for n in range(3):
            await bus.publish(Happened(n=n), stamp())
            os.kill(keeper.server.pid, signal.SIGKILL)
            outage = await next_outage(keeper)
            assert "SIGKILL" in outage.reason
            assert outage.restarts == n + 1
        assert (keeper.server.url, keeper.server.token) == address
        assert keeper.server.pid != first
        assert keeper.down_since is None
        assert [envelope.open(Happened).n async for envelope in bus.log()] == [0, 1, 2]
        assert not keeper.failed.done()


async def test_a_server_that_is_killed_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "dies-twice"
    binary.write_text(
        f"#!/bin/sh\necho >> {tmp_path}/starts\n[ $(wc -l < {tmp_path}/starts) -gt $(cat {tmp_path}/deaths) ] || kill"
        " -9 $$\n"
    )
    with binary.open("a") as file:
        file.write(f'exec {find_binary()} "$@"\n')
    binary.chmod(0o755)
    (tmp_path / "deaths").write_text("2")
    monkeypatch.setenv("AREAL_NATS_SERVER", str(binary))
    keeper = await ServerKeeper.start(tmp_path / "nats", RestartSettings(), sync_interval="5s")
    try:
        (tmp_path / "deaths").write_text("5")
        os.kill(keeper.server.pid, signal.SIGKILL)
        assert (await next_outage(keeper)).restarts == 1
        assert not keeper.failed.done()
    finally:
        await keeper.stop()


@UNANSWERED
async def test_a_server_that_does_not_answer_is_killed_and_started_again(tmp_path: Path, impatient: None) -> None:
    async with kept(tmp_path, RestartSettings(answer_seconds=1.0)) as keeper, joined(keeper) as bus:
        os.kill(keeper.server.pid, signal.SIGSTOP)
        publishing = asyncio.create_task(bus.publish(Happened(n=1), stamp()))
        outage = await next_outage(keeper)
        assert "did not answer for 1 s" in outage.reason
        assert outage.seconds >= 1.0
        assert await publishing == 1


@UNANSWERED
async def test_a_server_that_is_stopped_for_a_while_is_left_alone(tmp_path: Path, impatient: None) -> None:
    async with kept(tmp_path, RestartSettings(answer_seconds=600.0)) as keeper, joined(keeper) as bus:
        pid = keeper.server.pid
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: keeper.down_since is not None)
        os.kill(pid, signal.SIGCONT)
        await until(lambda: keeper.down_since is None)
        assert await bus.publish(Happened(n=1), stamp()) == 1
        assert keeper.server.pid == pid
        assert keeper.outages.empty()


async def test_a_server_that_dies_too_often_is_given_up_with_its_reason(tmp_path: Path) -> None:
    async with kept(tmp_path, RestartSettings(max_restarts=1)) as keeper:
        os.kill(keeper.server.pid, signal.SIGKILL)
        await next_outage(keeper)
        os.kill(keeper.server.pid, signal.SIGKILL)
        async with asyncio.timeout(300):
            sentence = await keeper.failed
        assert "SIGKILL" in sentence
        assert "after 1 restarts in 60 s" in sentence
        assert "bus.max_restarts" in sentence
        assert "\n" not in sentence


@pytest.mark.parametrize(("spoil", "words"), [("binary", "AREAL_NATS_SERVER is"), ("store", "cannot be written")])
async def test_a_server_that_cannot_be_started_again_is_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str, words: str
) -> None:
    async with kept(tmp_path / "nats") as keeper, joined(keeper) as bus:
        if spoil == "binary":
            monkeypatch.setenv("AREAL_NATS_SERVER", "/nowhere/nats-server")
        else:
            (tmp_path / "nats" / "store").rename(tmp_path / "elsewhere")
            (tmp_path / "nats" / "store").write_text("in the way")
        os.kill(keeper.server.pid, signal.SIGKILL)
        async with asyncio.timeout(300):
            sentence = await keeper.failed
        assert words in sentence
        assert "cannot be restarted" in sentence
        assert "\n" not in sentence
        bus.give_up(sentence)
        with pytest.raises(LogUnavailable, match="cannot be restarted"):
            await bus.publish(Happened(n=1), stamp())


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], check=False).returncode
    ):
        pytest.skip("a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def fill(folder: Path, bus: NatsBus) -> None:
    """Leave no space, and write until the server notices."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    with suppress(LogUnavailable):
        for n in range(100):
            await bus.publish(Happened(n=n, load=os.urandom(100_000)), stamp())


async def test_a_full_disk_is_named_at_once_and_after_it_is_freed_everything_is_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with kept(disk / "nats") as keeper, joined(keeper, retry_for_seconds=600) as bus:
            await bus.publish(Happened(n=1), stamp())
            filling = asyncio.create_task(fill(disk, bus))
            async with asyncio.timeout(300):
                sentence = await keeper.failed
            bus.give_up(sentence)
            await filling
        assert f"the disk of {disk / 'nats'} is full (0 MB free)" in sentence
        assert "free space and go on" in sentence
        (disk / "filler").unlink()
        async with kept(disk / "nats") as keeper, joined(keeper) as bus:
            assert (await bus.read([1]))[0].open(Happened).n == 1
            assert await bus.publish(Happened(n=2), stamp()) > 1


async def test_a_disk_that_was_full_for_a_moment_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_bus.server_keeper._MIN_FREE_BYTES", 0)
    monkeypatch.setattr("areal_bus.server_keeper.PROBE_SECONDS", 5.0)
    with small_disk(tmp_path / "disk") as disk:
        async with kept(disk / "nats") as keeper, joined(keeper, retry_for_seconds=600) as bus:
            filling = asyncio.create_task(fill(disk, bus))
            await until(lambda: "no space left" in (disk / "nats" / "nats-server.log").read_text())
            (disk / "filler").unlink()
            assert "was full for a moment" in (await next_outage(keeper)).reason
            await filling
            assert [envelope.open(Happened).n async for envelope in bus.log()] == list(range(100))


async def test_a_bus_is_closed_without_a_word_when_its_server_is_gone(tmp_path: Path) -> None:
    async with kept(tmp_path, RestartSettings(max_restarts=0)) as keeper, joined(keeper) as bus:
        os.kill(keeper.server.pid, signal.SIGKILL)
        async with asyncio.timeout(300):
            bus.give_up(await keeper.failed)
        await until(lambda: not bus._connection.is_up)
        await bus.streams.connection._client.publish("buffered", b"for a server that will not come back")


# ---------------------------------------------------------------- questions under way


async def test_a_question_whose_answer_was_lost_is_asked_again(tmp_path: Path) -> None:
    async with harness(tmp_path) as (keeper, asker, server, inbox):
        asking = asyncio.create_task(asker.request(Double(n=2), stamp(), timeout=300))
        await take(inbox, 1)
        os.kill(keeper.server.pid, signal.SIGKILL)
        await next_outage(keeper)
        (again,) = await take(inbox, 1)
        await server.reply(again.reply_to, Doubled(n=4), stamp())
        assert (await asking).n == 4


async def test_a_streamed_answer_that_the_server_took_with_it_is_named_at_once(tmp_path: Path) -> None:
    async with harness(tmp_path) as (keeper, asker, server, inbox):
        answers = asker.request_stream(Double(n=2), stamp(), timeout=600, to="g-0")
        first = asyncio.create_task(anext(answers))
        (asked,) = await take(inbox, 1)
        await server.reply(asked.reply_to, Doubled(n=1), stamp(), last=False)
        assert (await first).n == 1
        os.kill(keeper.server.pid, signal.SIGKILL)
        with pytest.raises(AnswerLost, match="the connection to the NATS server broke"):
            async with asyncio.timeout(300):
                await anext(answers)


async def test_a_missing_part_of_an_answer_is_noticed(tmp_path: Path) -> None:
    async with harness(tmp_path) as (_, asker, server, inbox):
        answers = asker.request_stream(Double(n=2), stamp(), timeout=300, to="g-0")
        first = asyncio.create_task(anext(answers))
        (asked,) = await take(inbox, 1)
        await server.reply(asked.reply_to, Doubled(n=1), stamp(), last=False)
        assert (await first).n == 1
        server._parts[asked.reply_to] += 1  # as if one were lost on a connection that broke elsewhere
        await server.reply(asked.reply_to, Doubled(n=3), stamp())
        with pytest.raises(AnswerLost, match="part 1 of the reply is lost, part 2 arrived"):
            await anext(answers)
        assert server._parts == {}


async def test_what_waits_for_a_server_to_have_seen_everything_waits_for_the_next_one(tmp_path: Path) -> None:
    async with kept(tmp_path) as keeper, joined(keeper) as bus:
        await stop(keeper.server.pid)
        waiting = asyncio.create_task(bus.barrier())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        os.kill(keeper.server.pid, signal.SIGKILL)
        await asyncio.wait_for(waiting, 300)
        await bus.barrier()


async def test_waiting_for_a_server_that_never_returns_is_an_error(tmp_path: Path) -> None:
    async with kept(tmp_path) as keeper, joined(keeper) as bus:
        await stop(keeper.server.pid)
        waiting = asyncio.create_task(bus.barrier())
        await asyncio.sleep(0.2)
        bus.give_up("it is gone")
        with pytest.raises(ServerUnavailable, match="it is gone"):
            await waiting
        os.kill(keeper.server.pid, signal.SIGCONT)


async def test_who_has_not_returned_yet_is_not_taken_for_gone(tmp_path: Path) -> None:
    async with kept(tmp_path) as keeper, joined(keeper) as asker, joined(keeper) as server:
        os.kill(keeper.server.pid, signal.SIGKILL)
        await next_outage(keeper)
        await asker.barrier()
        asking = asyncio.create_task(asker.request(Double(n=2), stamp(), timeout=300, to="g-0"))
        await asyncio.sleep(0.5)
        async with server.requests(Double, group="g", address="g-0") as inbox:
            (asked,) = await take(inbox, 1)
            await server.reply(asked.reply_to, Doubled(n=4), stamp())
            assert (await asking).n == 4
        assert numbers([asked]) == [2]
