"""Load generator with little CPU use: prebuilt bodies over raw keep-alive connections."""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import msgspec
import psutil

SYSTEM = "You are a careful assistant. Work step by step, use what you are given, and end with the answer alone."
TEMPLATE_TOKENS = 35
"""Tokens of a prompt in addition to the text of its user message."""
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_FIRST_TEXT = re.compile(rb'"content": ?"[^"]')
_END_OF_CHUNKS = b"0\r\n\r\n"


@dataclass(frozen=True)
class Endpoint:
    """Address and key of one session."""

    host: str
    port: int
    path: str
    key: str = "none"

    def request(self, body: bytes) -> bytes:
        """Return a chat request in wire format."""
        lines = (
            f"POST {self.path}/chat/completions HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            f"Authorization: Bearer {self.key}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server(Protocol):
    """A chat server in a separate process."""

    pid: int

    async def endpoints(self, count: int) -> list[Endpoint]:
        """Open `count` sessions."""
        ...


class _Message(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]


_completions = msgspec.json.Decoder(_Completion)


class Connection(asyncio.Protocol):
    """A keep-alive connection with one call at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._arrived = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self.first_text_at = 0.0
        """Arrival time of the first text of the last answer, by `perf_counter`: the loop's clock has only
        milliseconds."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending call."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    async def post(self, request: bytes) -> bytes:
        """Send a request and return the answer's body.

        Raises:
            RuntimeError: the status is not 200.
        """
        assert self._transport is not None
        self._arrived.clear()
        self.first_text_at = 0.0
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        """Complete the pending call when the whole answer has arrived."""
        self._arrived += data
        head, end, body = self._arrived.partition(b"\r\n\r\n")
        if not end or self._answer is None:
            return
        length = _LENGTH.search(head)
        if not self.first_text_at and _FIRST_TEXT.search(body):
            self.first_text_at = time.perf_counter()
        whole = len(body) >= int(length[1]) if length else body.endswith(_END_OF_CHUNKS)
        if whole and b" 200 " in head[:16]:
            self._answer.set_result(bytes(body))
        elif whole:
            self._answer.set_exception(RuntimeError(f"{head[:40].decode()}: {body[:400].decode(errors='replace')}"))

    def close(self) -> None:
        """Close the connection."""
        assert self._transport is not None
        self._transport.close()


async def connect(endpoint: Endpoint, count: int) -> list[Connection]:
    """Open `count` connections to the server of this endpoint."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, endpoint.host, endpoint.port))[1] for _ in range(count)]


def message(role: str, text: str) -> bytes:
    """A message as JSON."""
    return msgspec.json.encode({"role": role, "content": text})


def body(messages: Sequence[bytes], *, stream: bool = False) -> bytes:
    """Return a request body of messages in JSON."""
    rest = b'],"stream":true}' if stream else b"]}"
    return b'{"model":"default","max_tokens":512,"messages":[' + b",".join(messages) + rest


@dataclass
class Conversation:
    """A conversation that grows with every request."""

    endpoint: Endpoint
    user: list[bytes]
    """Remaining user messages, in order."""
    messages: list[bytes] = field(default_factory=lambda: [message("system", SYSTEM)])

    def request(self) -> bytes:
        """Return the request of the next turn."""
        self.messages.append(self.user.pop(0))
        return self.endpoint.request(body(self.messages))

    def add_answer(self, answer: bytes) -> None:
        """Append the model's answer to the messages."""
        self.messages.append(message("assistant", _completions.decode(answer).choices[0].message.content))


@dataclass(frozen=True)
class Cost:
    """CPU time of the server and latency, per call."""

    cpu_ms: float
    p50_ms: float
    p99_ms: float


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # clock id of another process's CPU clock
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def calls(server: Server, requests: Sequence[bytes], connections: list[Connection]) -> Cost:
    """Send all requests, one at a time on each connection."""
    left, seconds = iter(requests), list[float]()
    before = cpu_seconds(server.pid)
    async with asyncio.TaskGroup() as tasks:
        for connection in connections:
            tasks.create_task(_send(left, connection, seconds, lambda began, ended, _: ended - began))
    return _cost_per_call(seconds, cpu_seconds(server.pid) - before)


async def first_texts(
    server: Server, requests: Sequence[bytes], connections: list[Connection], delay_seconds: float
) -> Cost:
    """Like `calls`, with the latency of the first text of a streamed answer.

    Starts are spread evenly over the engine's delay.
    """
    left, seconds = iter(requests), list[float]()
    before = cpu_seconds(server.pid)
    async with asyncio.TaskGroup() as tasks:
        for number, connection in enumerate(connections):
            wait = delay_seconds * number / len(connections)
            tasks.create_task(
                _send(left, connection, seconds, lambda began, _, first: first - began - delay_seconds, wait)
            )
    return _cost_per_call(seconds, cpu_seconds(server.pid) - before)


async def agents(
    server: Server, requests: Sequence[Iterable[bytes]], connections: list[Connection], delay_seconds: float
) -> Cost:
    """One agent per connection sends its next call after each answer; starts are spread evenly over the engine's delay.

    Latency excludes that delay.
    """
    seconds = list[float]()
    before = cpu_seconds(server.pid)
    async with asyncio.TaskGroup() as tasks:
        for number, (own, connection) in enumerate(zip(requests, connections, strict=True)):
            wait = delay_seconds * number / len(connections)
            tasks.create_task(
                _send(iter(own), connection, seconds, lambda began, ended, _: ended - began - delay_seconds, wait)
            )
    return _cost_per_call(seconds, cpu_seconds(server.pid) - before)


async def _send(
    requests: Iterator[bytes],
    connection: Connection,
    seconds: list[float],
    measured: Callable[[float, float, float], float],
    wait: float = 0.0,
) -> None:
    await asyncio.sleep(wait)
    for request in requests:
        began = time.perf_counter()
        await connection.post(request)
        seconds.append(measured(began, time.perf_counter(), connection.first_text_at))


async def conversations(server: Server, started: Sequence[Conversation], connections: list[Connection]) -> list[float]:
    """Run all conversations turn by turn; returns CPU milliseconds per conversation of each turn."""

    async def take_turns(waiting: Iterator[Conversation], connection: Connection) -> None:
        for conversation in waiting:
            conversation.add_answer(await connection.post(conversation.request()))

    spent: list[float] = []
    while started[0].user:
        before, waiting = cpu_seconds(server.pid), iter(started)
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(take_turns(waiting, connection))
        spent.append(1000 * (cpu_seconds(server.pid) - before) / len(started))
    return spent


def _cost_per_call(seconds: list[float], cpu: float) -> Cost:
    percentiles = statistics.quantiles(seconds, n=100)
    return Cost(cpu_ms=1000 * cpu / len(seconds), p50_ms=1000 * percentiles[49], p99_ms=1000 * percentiles[98])
