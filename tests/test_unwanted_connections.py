"""Connections of clients without a credential: idle ones give way, requests keep their place; exhausted descriptors are
named as such."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from areal_actors.core.durable_files import explain_os_error, is_disk_full
from areal_actors.core.errors import SetupError
from areal_actors.core.http_connections import HttpListener, answer_in_place, most_connections
from areal_actors.core.objects import CODE, RemoteObjects
from areal_actors.folder.run_folder import RunFolder
from areal_actors.hosts.object_access import access_of
from areal_actors.hosts.object_keeper import ObjectKeeper
from areal_actors.hosts.object_process import Grant
from areal_actors.recipe.run_settings import DiskSettings
from areal_actors.supervision.disk_watch import DiskWatch
from areal_bus.certificates import make_certificate
from areal_bus.descriptors import descriptor_limit, is_out_of_descriptors, raise_descriptor_limit
from areal_bus.server import EmbeddedServer
from areal_bus.server_config import max_connections
from areal_bus.tls import Certificate

MOST = 8
REQUEST = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
PATIENT = 60.0
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """A server with few places, whose requests wait until they are released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.waiting = 0
        self.port = 0
        self.lines: list[Line] = []

    async def wait(self, _: web.Request) -> web.Response:
        self.waiting += 1
        await self.released.wait()
        return web.Response(text="done")

    async def until_waiting(self, count: int) -> None:
        async with asyncio.timeout(PATIENT):
            while self.waiting < count:  # noqa: ASYNC110 - requests arrive one by one
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    file: Path | None = None, *, certificate: Certificate | None = None, head_seconds: float = PATIENT
) -> AsyncIterator[Served]:
    async def send_file(_: web.Request) -> web.FileResponse:
        assert file is not None
        return web.FileResponse(file)

    served, app = Served(), web.Application(middlewares=[web.middleware(answer_in_place)])
    app.router.add_get("/file", send_file)
    app.router.add_get("/wait", served.wait)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    assert runner.server is not None
    listener = HttpListener(runner.server, head_seconds, MOST)
    await listener.start("127.0.0.1" if certificate else "0.0.0.0", 0, certificate.context() if certificate else None)
    served.port = listener.port
    try:
        yield served
    finally:
        served.released.set()
        listener.close()
        for _, writer in served.lines:
            writer.close()
        await runner.cleanup()


async def connect(served: Served, address: str = "127.0.0.1") -> Line:
    line = await asyncio.open_connection("127.0.0.1", served.port, local_addr=(address, 0))
    served.lines.append(line)
    return line


async def status(line: Line) -> int:
    """The status that a connection is sent; 0 if it is closed without."""
    async with asyncio.timeout(PATIENT):
        head = await line[0].readline()
    return int(head.split()[1]) if head else 0


async def request_waits(served: Served, line: Line) -> None:
    count = served.waiting
    line[1].write(REQUEST)
    await served.until_waiting(count + 1)


async def test_connections_that_give_way_before_they_are_opened_are_closed() -> None:
    """They all wait in the kernel when the server accepts them: none is opened before the next takes its place."""
    gc.disable()
    try:
        async with serving() as served:
            clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(4 * MOST)]
            for client in clients:
                client.send(REQUEST)
                client.setblocking(False)
            await served.until_waiting(MOST)
            served.released.set()
            async with asyncio.timeout(PATIENT):
                ends = [await first_bytes(client) for client in clients]
            assert sum(end.startswith(b"HTTP/1.1 200") for end in ends) == MOST
            assert set(ends[:-MOST]) <= {b"", b"HTTP/1.1 503"}
    finally:
        gc.enable()


async def first_bytes(client: socket.socket) -> bytes:
    """The beginning of what a client receives; nothing if its connection is closed without."""
    try:
        return await asyncio.get_running_loop().sock_recv(client, 12)
    except ConnectionError:
        return b""
    finally:
        client.close()


async def test_idle_connections_give_way_and_requests_keep_their_place() -> None:
    async with serving() as served:
        busy = await connect(served)
        await request_waits(served, busy)
        idle = [await connect(served) for _ in range(3 * MOST)]
        newest = await connect(served)
        await request_waits(served, newest)
        refused = [await status(line) for line in idle[: 2 * MOST]]
        assert refused == [503] * (2 * MOST), "those that had been idle longest were sent the reason"
        served.released.set()
        assert [await status(busy), await status(newest)] == [200, 200]


async def test_a_file_that_is_being_sent_keeps_its_place(tmp_path: Path) -> None:
    (file := tmp_path / "large").write_bytes(bytes(64 << 20))
    async with serving(file) as served:
        line = await connect(served)
        line[1].write(REQUEST.replace(b"wait", b"file"))
        assert await status(line) == 200
        for _ in range(5 * MOST):
            await connect(served)
        newest = await connect(served)
        await request_waits(served, newest)
        received = await asyncio.wait_for(line[0].readuntil(b"\r\n\r\n"), PATIENT)
        async with asyncio.timeout(PATIENT):
            body = await line[0].readexactly(file.stat().st_size)
        assert b"200" not in received
        assert not body.strip(b"\0")


async def test_where_all_connections_are_busy_a_new_one_is_refused_at_once() -> None:
    async with serving() as served:
        busy = [await connect(served) for _ in range(MOST)]
        for line in busy:
            await request_waits(served, line)
        assert await status(await connect(served)) == 503
        served.released.set()
        assert [await status(line) for line in busy] == [200] * MOST
        served.released.clear()
        after = await connect(served)
        await request_waits(served, after)  # one that answered gives way


async def test_the_address_with_the_most_idle_connections_loses_them_first() -> None:
    async with serving() as served:
        quiet = await connect(served, "127.0.0.1")
        flood = [await connect(served, "127.0.0.2") for _ in range(5 * MOST)]
        assert await status(flood[0]) == 503
        await request_waits(served, quiet)
        served.released.set()
        assert await status(quiet) == 200


async def test_a_head_that_never_ends_is_a_408() -> None:
    async with serving(head_seconds=0.2) as served:
        line = await connect(served)
        line[1].write(b"GET /wait HTTP/1.1\r\nHost: x\r\n")
        assert await status(line) == 408


async def test_handshakes_that_never_begin_give_way(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "tls")
    async with serving(certificate=certificate) as served:
        idle = [await connect(served) for _ in range(3 * MOST)]
        served.released.set()
        connector = aiohttp.TCPConnector(ssl=aiohttp.Fingerprint(bytes.fromhex(certificate.fingerprint)))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"https://127.0.0.1:{served.port}/wait") as answer,
        ):
            assert answer.status == 200
        assert await status(idle[0]) == 0


@contextmanager
def without_descriptors() -> Iterator[None]:
    """This process has no descriptor left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    held: list[int] = []
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_listener_without_descriptors_goes_on_when_there_are_some_again() -> None:
    async with serving() as served:
        session = aiohttp.ClientSession()
        asking = asyncio.create_task(session.get(f"http://127.0.0.1:{served.port}/wait"))
        with without_descriptors():
            await asyncio.sleep(0.3)
        served.released.set()
        with pytest.raises(aiohttp.ClientOSError):  # the client of this process had none either
            await asking
        async with asyncio.timeout(PATIENT), session.get(f"http://127.0.0.1:{served.port}/wait") as answer:
            assert answer.status == 200
        await session.close()


def test_a_want_of_descriptors_is_no_full_disk(tmp_path: Path) -> None:
    for number in (errno.EMFILE, errno.ENFILE):
        error = OSError(number, os.strerror(number), "x")
        assert is_out_of_descriptors(error)
        assert not is_disk_full(error, tmp_path)
        assert "ulimit" in explain_os_error(error)
    assert is_out_of_descriptors(RuntimeError("I/O error: Too many open files (os error 24)"))
    assert not is_disk_full(RuntimeError("I/O error: Too many open files (os error 24)"), tmp_path)
    full = OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_full(full, tmp_path)
    assert not is_out_of_descriptors(full)
    assert "ulimit" not in explain_os_error(full)


def test_a_watch_of_the_disk_without_descriptors_checks_again_later(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (folder.checkpoints / "step-1").mkdir(parents=True)
    now = 0.0
    watch = DiskWatch(DiskSettings(min_free_mb=1 << 40), folder, clock=lambda: now)
    with without_descriptors():
        assert watch.check() is None
        assert not watch.full
    now += 60.0
    assert watch.check() is not None


def test_a_command_has_as_many_descriptors_as_it_may() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        assert most_connections() == 32
        assert most_connections(2) == 16
        assert raise_descriptor_limit() == descriptor_limit() > 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_bus_has_a_limit_of_connections_below_its_descriptors_and_a_time_to_log_in(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path, owner_only=True)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{server.monitoring_url}/varz") as report:
            found = await report.json()
        parts = urlsplit(server.address)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        async with asyncio.timeout(PATIENT):
            answer = (await reader.read()).decode()
        writer.close()
    finally:
        await server.stop()
    assert found["max_connections"] == max_connections() < resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert "Authentication Timeout" in answer


@pytest.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[ObjectKeeper]:
    folder = RunFolder(tmp_path / "run")
    folder.logs.mkdir(parents=True)
    (agent := tmp_path / "agent.py").write_text("print('agent')\n")
    keeper = ObjectKeeper("a-run", folder, {"agent.py": agent})
    await keeper.start("127.0.0.1", 0, None)
    watching = asyncio.create_task(keeper.watch())
    yield keeper
    watching.cancel()
    await keeper.stop()


async def test_the_server_of_the_files_is_another_process_that_is_replaced_with_port_and_tokens(
    keeper: ObjectKeeper, tmp_path: Path
) -> None:
    port = keeper.port
    await keeper.grant(Grant(token="one", access=access_of("rollout_worker")))
    await keeper.grant(Grant(token="two", access=access_of("rollout_worker")))
    await keeper.revoke("two")

    def pull(token: str) -> str:
        RemoteObjects(f"http://127.0.0.1:{port}", token).pull(CODE, tmp_path / token)
        return (tmp_path / token / "agent.py").read_text()

    assert await asyncio.to_thread(pull, "one") == "print('agent')\n"
    process = keeper._process
    assert process is not None
    assert process.pid != os.getpid()
    os.kill(process.pid, signal.SIGKILL)
    assert await asyncio.to_thread(pull, "one") == "print('agent')\n"
    assert keeper.port == port
    assert keeper._process is not process
    with pytest.raises(PermissionError):
        await asyncio.to_thread(pull, "two")


async def test_more_workers_than_the_server_has_descriptors_receive_their_files(tmp_path: Path) -> None:
    folder, pulls = RunFolder(tmp_path / "run"), 96
    folder.logs.mkdir(parents=True)
    (agent := tmp_path / "agent.py").write_bytes(os.urandom(1 << 18))
    keeper, limits = ObjectKeeper("a-run", folder, {"agent.py": agent}), resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())  # this process may have many open
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, highest + 32), limits[1]))
    try:
        await keeper.start("127.0.0.1", 0, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await keeper.grant(Grant(token="token", access=access_of("rollout_worker")))
    objects = RemoteObjects(f"http://127.0.0.1:{keeper.port}", "token", retry_for_seconds=PATIENT)
    try:
        with ThreadPoolExecutor(pulls) as threads:
            await asyncio.wrap_future(
                threads.submit(
                    lambda: list(threads.map(lambda n: objects.pull(CODE, tmp_path / str(n)), range(pulls - 1)))
                )
            )
        assert all(
            (tmp_path / str(number) / "agent.py").read_bytes() == agent.read_bytes() for number in range(pulls - 1)
        )
        assert keeper._process is not None
        assert keeper._process.returncode is None
    finally:
        await keeper.stop()


async def test_an_address_that_cannot_be_used_is_named(keeper: ObjectKeeper, tmp_path: Path) -> None:
    another = ObjectKeeper("a-run", keeper.folder, {})
    with pytest.raises(SetupError, match=f"bus.objects_port: cannot listen on 127.0.0.1:{keeper.port}"):
        await another.start("127.0.0.1", keeper.port, None)
    await another.stop()


async def test_files_follow_each_other_on_one_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (file := tmp_path / "file").write_bytes(b"x" * 100_000)
    async with serving(file) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        served.lines.append((reader, writer))
        for _ in range(3):
            writer.write(b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENT)
            assert head.startswith(b"HTTP/1.1 200")
            assert await asyncio.wait_for(reader.readexactly(100_000), PATIENT) == file.read_bytes()
    assert "Unhandled" not in caplog.text
