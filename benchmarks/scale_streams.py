"""The log in one stream or in several, by hash of the group.

What one nats-server takes and delivers, without any Python in its way.
Real messages of a run's mix are written to sockets as fast as the server takes them, and read by as many consumers as a
run's log has; both are processes that only move bytes, so that the server is what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from areal_bus.nats_connection import Connection
from areal_bus.server import EmbeddedServer

WRITERS = 4
AT_ONCE = 2000
"""Messages of a writer between two waits for the server's answer to a ping."""
TIMEOUT_SECONDS = 300.0
CONSUMERS = 4
"""Processes that read every event of an episode: control, gateway, trainer and supervisor."""
NANOSECONDS = 1_000_000_000


def _connected(port: int, token: str) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port))
    line.recv(65536)
    options = json.dumps(
        {"verbose": False, "pedantic": False, "auth_token": token, "lang": "raw", "version": "0", "headers": True}
    )
    line.sendall(f"CONNECT {options}\r\nPING\r\n".encode())
    _await_pong(line)
    return line


def _await_pong(line: socket.socket) -> None:
    received = b""
    while b"PONG" not in received:
        received = received[-8:] + line.recv(65536)


def write(port: int, token: str, subjects: Sequence[str], sizes: Sequence[int], first: int, messages: int) -> None:
    """Write messages of these sizes, in turn, to the stream that the group's number selects."""
    line = _connected(port, token)
    for start in range(0, messages, AT_ONCE):
        parts = []
        for number in range(first + start, first + min(start + AT_ONCE, messages)):
            size = sizes[number % len(sizes)]
            group = number // len(sizes)
            headers = f"NATS/1.0\r\nNats-Msg-Id: {number:032d}\r\n\r\n".encode()
            subject = subjects[group % len(subjects)]
            parts.append(
                f"HPUB {subject} {len(headers)} {len(headers) + size}\r\n".encode() + headers + b"x" * size + b"\r\n"
            )
        line.sendall(b"".join(parts) + b"PING\r\n")
        _await_pong(line)
    line.close()


def read(port: int, token: str, subject: str) -> None:
    """Receive what is sent to this subject, and drop it."""
    line = _connected(port, token)
    line.sendall(f"SUB {subject} 1\r\n".encode())
    while received := line.recv(1 << 20):
        if b"PING\r\n" in received:
            line.sendall(b"PONG\r\n")


@contextlib.contextmanager
def _processes(calls: Sequence[tuple[Any, ...]]) -> Iterator[None]:
    forked = multiprocessing.get_context("fork")
    started = [forked.Process(target=call[0], args=call[1:], daemon=True) for call in calls]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.join()


async def _api(connection: Connection, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    with connection.inbox() as inbox:
        await connection.publish(f"$JS.API.{verb}", json.dumps(body).encode() if body else b"", reply=inbox.address)
        answer: dict[str, Any] = json.loads((await inbox.next(30.0)).data)
    if "error" in answer:
        raise RuntimeError(f"{verb}: {answer['error']}")
    return answer


async def measure(streams: int, consumers: int, sizes: Sequence[int], messages: int) -> dict[str, Any]:
    """Write the messages to this number of streams, each read by all consumers, until all are delivered."""
    with tempfile.TemporaryDirectory() as temporary:
        server = await EmbeddedServer.start(Path(temporary))
        try:
            connection = await Connection.open(server.url, name="scale", token=server.token)
            try:
                return await _measure(server, connection, (streams, consumers), sizes, messages)
            finally:
                await connection.close()
        finally:
            await server.stop()


async def _measure(
    server: EmbeddedServer, connection: Connection, counts: tuple[int, int], sizes: Sequence[int], messages: int
) -> dict[str, Any]:
    streams, consumers = counts
    names = [f"S{index}" for index in range(streams)]
    for name in names:
        config = {"name": name, "subjects": [f"log.{name}"], "storage": "file", "duplicate_window": 120 * NANOSECONDS}
        await _api(connection, f"STREAM.CREATE.{name}", config)
    access = server.port, server.token
    share = messages // WRITERS
    writers = [
        (write, *access, [f"log.{name}" for name in names], sizes, index * share, share) for index in range(WRITERS)
    ]
    with _processes([(read, *access, f"to.{index}") for index in range(consumers)]):
        for name in names:
            for index in range(consumers):
                config = {
                    "deliver_subject": f"to.{index}",
                    "ack_policy": "none",
                    "mem_storage": True,
                    "deliver_policy": "all",
                }
                await _created(connection, name, config)
        process, began = psutil.Process(server.pid), time.perf_counter()
        before = process.cpu_times()
        with _processes(writers):
            await _all_delivered(connection, names, share * WRITERS)
        seconds, after = time.perf_counter() - began, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return {
        "streams": streams,
        "consumers": consumers,
        "events_per_second": round(share * WRITERS / seconds),
        "server_cpu_us_per_event": round(1e6 * cpu / (share * WRITERS), 1),
        "server_cores": round(cpu / seconds, 2),
    }


async def _created(connection: Connection, stream: str, config: dict[str, Any]) -> None:
    """Create a consumer, once its reader has subscribed."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        consumer = await _api(connection, f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        if consumer.get("push_bound") or time.monotonic() > deadline:
            return
        await _api(connection, f"CONSUMER.DELETE.{stream}.{consumer['name']}", {})
        await asyncio.sleep(0.05)


async def _all_delivered(connection: Connection, streams: Sequence[str], messages: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        stored, waiting = 0, 0
        for stream in streams:
            stored += (await _api(connection, f"STREAM.INFO.{stream}", {}))["state"]["messages"]
            listed = await _api(connection, f"CONSUMER.LIST.{stream}", {})
            waiting += sum(consumer["num_pending"] for consumer in listed["consumers"])
        if stored >= messages and not waiting:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{stored} of {messages} messages were stored, and {waiting} wait for a consumer")
