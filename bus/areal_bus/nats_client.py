"""The NATS client of a connection: the library's, with less work for each message.

The library hands each message to a queue and a task of its subscription, and each publication to a queue and a task
that writes. Here a message goes to its receiver as soon as it is parsed, and what one turn of the event loop publishes
is written at its end. Wherever the library waits, while it is not connected or the server is slower than this process,
its own path is taken.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol import command

from areal_bus.nats_parser import HEADER_LINE, DirectParser, Receive, read_headers
from areal_bus.shared_times import seconds_to_next

_CLOSE_SECONDS: Final = 1.0
"""Time in which the connection of an earlier attempt closes; the next attempt does not need it."""
_UNWRITTEN_BYTES: Final = 64 << 10
"""Bytes that the socket has not taken yet, above which the library's flusher waits for it."""


class DirectClient(Client):
    """A client with subscriptions whose messages need no task."""

    def __init__(self, *, needs_encryption: bool = False) -> None:
        super().__init__()
        self._needs_encryption = needs_encryption
        self._receivers: dict[int, Receive] = {}
        """Receivers of direct subscriptions, by the id of the subscription."""
        self._ps: DirectParser = DirectParser(self, self._receivers)
        self._writes_soon = False

    def _connect_command(self) -> bytes:
        """Refuse to send credentials in the clear.

        The library would, if a server's greeting does not ask for encryption.
        """
        if self._needs_encryption and not self._server_info.get("tls_required"):
            raise nats_errors.Error("the server does not encrypt: write nats:// in place of tls://, or have it encrypt")
        return super()._connect_command()

    async def _connect_to_server(self, server: Any) -> None:
        """Close the connection of an attempt that was refused, which the library forgets.

        A connection that ended during its TLS handshake never reports that it is closed: its end went to the
        handshake's protocol. `asyncio.wait_for` of Python 3.11 loses a cancellation that arrives as its future ends
        (python/cpython#86296), so that an attempt that has just failed would be followed by others without an end.
        """
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        refused: Any = self._transport
        if refused:
            refused.close()
            with suppress(OSError, RuntimeError, AttributeError, TimeoutError):
                await asyncio.wait_for(refused.wait_closed(), _CLOSE_SECONDS)
        await super()._connect_to_server(server)

    async def subscribe_directly(self, subject: str, receive: Receive, *, group: str = "") -> Subscription:
        """Subscribe with a receiver that is called while the socket is read."""

        async def receive_queued(message: Msg) -> None:
            receive(message)

        subscription = await self.subscribe(subject, queue=group, cb=receive_queued)
        self._receivers[subscription._id] = receive  # noqa: SLF001 - the library has no public name for it
        return subscription

    async def _ping_interval(self) -> None:
        """Ping the server as the library does, at the same times as other clients."""
        while True:
            await asyncio.sleep(seconds_to_next(self.options["ping_interval"]))
            if not self.is_connected:
                continue
            try:
                self._pings_outstanding += 1
                if self._pings_outstanding > self.options["max_outstanding_pings"]:
                    await self._process_op_err(nats_errors.StaleConnectionError())
                    return
                await self._send_ping()
            except (asyncio.CancelledError, RuntimeError, AttributeError):
                break

    async def _read_loop(self) -> None:
        """Read the socket; messages of direct subscriptions need no turn of this task."""
        if (reader := getattr(self._transport, "_io_reader", None)) is not None:
            self._ps.read_directly(reader)
        await super()._read_loop()

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._receivers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        receive = self._receivers.get(sid)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        decoded = (read_headers(headers) or await self._process_headers(headers)) if headers else None
        try:
            receive(Msg(_client=self, subject=subject.decode(), reply=reply.decode(), data=data, headers=decoded))
        except Exception as error:  # noqa: BLE001 - any would end the loop that reads the socket
            await self._error_cb(error)

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publish a message; names and values of headers are visible ASCII without spaces at their ends."""
        size = self._pending_data_size + len(payload)
        if (
            not self.is_connected
            or self.is_draining_pubs
            or size > self._max_pending_size
            or self._unwritten() > _UNWRITTEN_BYTES
        ):
            await super().publish(subject, payload, reply, headers)
            return
        if headers is None:
            sent = command.pub_cmd(subject, reply, payload)
        else:
            lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
            sent = command.hpub_cmd(subject, reply, f"{HEADER_LINE}{lines}\r\n".encode(), payload)
        self._pending.append(sent)
        self._pending_data_size += len(sent)
        if not self._writes_soon:
            self._writes_soon = True
            asyncio.get_running_loop().call_soon(self._write_pending)

    def _unwritten(self) -> int:
        """Bytes that wait for the socket."""
        transport: Any = self._transport
        return int(transport._io_writer.transport.get_write_buffer_size())  # noqa: SLF001 - as above

    def _write_pending(self) -> None:
        """Write what this turn of the event loop has published."""
        self._writes_soon = False
        if self._pending and self.is_connected and self._transport is not None:
            # A transport that has just closed refuses: what is pending is sent after the reconnection.
            with suppress(OSError, RuntimeError, AttributeError):
                self._transport.writelines(self._pending)
                self._pending, self._pending_data_size = [], 0


def status(message: Msg) -> str:
    """Returns the three-digit status of a message from the server itself; empty for other messages."""
    if message.headers is None or message.data:
        return ""
    return message.headers.get("Status", "")
