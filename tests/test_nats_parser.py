"""Messages of direct subscriptions, parsed apart from the library: the same wherever what is read ends."""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.msg import Msg
from support.bus_cases import connected
from test_bus_restarts import server

from areal_bus.nats_client import DirectClient
from areal_bus.server import EmbeddedServer

__all__ = ["server"]  # the fixture


def message(subject: str, body: bytes, *, reply: str = "", head: bytes = b"") -> bytes:
    """A message to subscription 1, as the server writes it."""
    words = [b"HMSG" if head else b"MSG", subject.encode(), b"1", *([reply.encode()] if reply else [])]
    sizes = [b"%d" % len(head)] if head else []
    return b" ".join([*words, *sizes, b"%d" % (len(head) + len(body))]) + b"\r\n" + head + body + b"\r\n"


WIRE = b"".join(
    [
        message("a.b", b"hello"),
        message("a.c", b"world", reply="to.me", head=b"NATS/1.0\r\nNumber: 7\r\nText: a: b\r\n\r\n"),
        message("inbox", b"", head=b"NATS/1.0 503\r\n\r\n"),
        b"+OK\r\n",
        message("a.d", b"\r\nMSG a.b 1 3\r\nbye\r\n", reply="to.you"),
        message("a.e", b""),
    ]
)
FOUND: list[tuple[str, str, bytes, Any]] = [
    ("a.b", "", b"hello", None),
    ("a.c", "to.me", b"world", {"Number": "7", "Text": "a: b"}),
    ("inbox", "", b"", {"Status": "503"}),
    ("a.d", "to.you", b"\r\nMSG a.b 1 3\r\nbye\r\n", None),
    ("a.e", "", b"", None),
]


async def test_messages_are_the_same_wherever_what_is_read_ends() -> None:
    for end in range(len(WIRE) + 1):
        client, found = DirectClient(), list[Msg]()
        client._receivers[1] = found.append
        for read in (WIRE[:end], WIRE[end:]):
            await client._ps.parse(read)
        assert [(one.subject, one.reply, one.data, one.headers) for one in found] == FOUND, end
        assert not client._ps.buf


async def test_one_byte_at_a_time() -> None:
    client, found = DirectClient(), list[Msg]()
    client._receivers[1] = found.append
    for byte in WIRE:
        await client._ps.parse(bytes([byte]))
    assert [(one.subject, one.reply, one.data, one.headers) for one in found] == FOUND


async def test_long_and_short_messages_of_direct_and_other_subscriptions_keep_their_order(
    server: EmbeddedServer,
) -> None:
    direct: asyncio.Queue[bytes] = asyncio.Queue()
    queued: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(message: Msg) -> None:
        queued.put_nowait(message.data)

    async with connected(server) as here, connected(server) as there:
        await here._connection.receive("direct", lambda message: direct.put_nowait(message.data))
        await here._connection.subscribe("queued", receive)
        await here.barrier()
        sent = [b"%d " % number * (1 if number % 7 else 60_000) for number in range(60)]
        for body in sent:
            for subject in ("direct", "queued"):
                await there._connection.publish(subject, body)
        async with asyncio.timeout(300):
            assert [await direct.get() for _ in sent] == sent
            assert [await queued.get() for _ in sent] == sent
