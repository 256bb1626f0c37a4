"""One connection to a NATS server, which reconnects until it is closed or lost permanently."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

import structlog
from nats import errors as nats_errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.nuid import NUID, PREFIX_LENGTH

from areal_bus.denials import Denials
from areal_bus.errors import MessageTooLarge, NoReply, ServerUnavailable
from areal_bus.nats_client import DirectClient
from areal_bus.nats_inbox import Disconnected, Inbox, Inboxes, Reconnected
from areal_bus.nats_parser import Receive
from areal_bus.server_version import check_server_version
from areal_bus.subjects import inbox_of
from areal_bus.tls import cause_of, client_context, encrypts
from areal_bus.users import credentials_of, servers_of, user_of, without_credentials

_HEADER_ROOM: Final = 64
"""Upper bound for the bytes of a header block besides names and values."""
_WARN_EVERY_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 5.0
_BARRIER_SECONDS: Final = 30
"""Equal to the default time for which events and work are retried."""
_MAX_REFUSALS: Final = 3
"""Attempts in a row after which credentials count as refused. A server that just loads other users refuses all that are
logging in."""

_logger = structlog.get_logger(__name__)


class Connection:
    """A connection for publishing, subscriptions and request inboxes.

    All inboxes share one subscription, created by `open`.
    """

    def __init__(self, name: str, url: str) -> None:
        user = user_of(url)
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._url, self._tls = url, client_context(url)
        self._client = DirectClient(needs_encryption=self._tls is not None)
        self._nuid = NUID()
        self._inboxes = Inboxes(self._loop)
        self._inbox = inbox_of(user or "shared")
        self._connection_id = self._nuid.next()[:PREFIX_LENGTH].decode()  # the rest counts; every reply has it
        self._denials = Denials(user or name)
        self._subscriptions: list[NatsSubscription] = []
        self._request_count = 0
        self._reconnect_callbacks: dict[object, Callable[[], None]] = {}
        self._lost = asyncio.Event()
        self._reason = ""
        self._opened = False
        self._closing = False
        self._giving_up: asyncio.Task[None] | None = None
        self._last_error = ""
        self._refused = asyncio.Event()
        self._refusals = 0
        """Attempts since the last connection that the server has refused."""
        self._not_secure = ""
        """Cause for which the connection cannot be encrypted."""
        self._next_warning = 0.0
        self.reconnected_at = -math.inf
        """Time of the last reconnection, by the event loop's clock; infinite from a disconnection to the
        reconnection."""

    @classmethod
    async def open(cls, url: str, *, name: str, token: str = "", timeout: float = 10.0) -> Connection:
        """Connect to a server.

        Raises:
            ServerUnavailable: no server answers within `timeout` seconds, the credentials are refused, or the server is
                too old.
        """
        connection = cls(name, url)
        try:
            await connection._connect(url, token, timeout)
            version = connection._client.connected_server_version
            check_server_version(version.major, version.minor)
            await connection.receive(f"{connection._inbox}.*.{connection._connection_id}.*", connection._put_into_inbox)
            await connection.barrier()
            connection._opened, connection._refusals = True, 0
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _connect(self, url: str, token: str, timeout: float) -> None:
        connecting = asyncio.ensure_future(
            self._client.connect(
                servers_of(url),
                name=self._name,
                **(credentials_of(url) or {"token": token or None}),
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                ping_interval=3,
                max_outstanding_pings=2,
                reconnect_time_wait=0.2,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                pending_size=8 << 20,
                skip_subject_validation=True,
                tls=self._tls,
                tls_handshake_first=bool(urlsplit(url).fragment),
            )
        )
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            done, _ = await asyncio.wait({connecting, refused}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if connecting in done:
                await connecting
                return
        except (nats_errors.Error, OSError, ValueError) as error:
            self._last_error = str(error)
        finally:
            refused.cancel()
            if not connecting.done():
                connecting.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await connecting
        shown = without_credentials(url)
        if self._not_secure:
            raise ServerUnavailable(f"there is no encrypted connection to the server at {shown}: {self._not_secure}")
        if self._tls is None and not self._refused.is_set() and await asyncio.to_thread(encrypts, url):
            raise ServerUnavailable(
                f"the server at {shown} encrypts (bus.tls): take its address, tls://, from join.json or bus.json"
            )
        if self._refused.is_set():
            raise ServerUnavailable(
                f"the server at {shown} refused the credentials of {self._name!r}: {self._last_error}"
            )
        raise ServerUnavailable(
            f"no NATS server answers at {shown} within {timeout:g} s ({self._last_error or 'no error given'}); "
            "start one, or correct its address (bus.url, NATS_URL)"
        )

    # ------------------------------------------------------------ operations

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send one message, without confirmation.

        Raises:
            PermissionDenied: the server has refused this user that subject before.
            MessageTooLarge: the message exceeds the server's limit; the server would close the connection.
            ServerUnavailable: the connection is lost permanently, or the buffer for a reconnection is full.
        """
        size = len(payload)
        if headers is not None:
            size += _HEADER_ROOM + sum(len(name) + len(value.encode()) for name, value in headers.items())
        if size > self._client.max_payload:
            raise MessageTooLarge(
                f"{subject}: {size} bytes with headers exceed the server's limit of {self._client.max_payload}; "
                "give the bus a blobs folder that all processes can read"
            )
        if self._lost.is_set():
            raise ServerUnavailable(self._reason)
        self._denials.check(subject)
        if (inbox := self._inboxes.get(reply.rpartition(".")[2])) is not None and inbox.address == reply:
            inbox.request_subject = subject
        try:
            await self._client.publish(subject, payload, reply, headers)
        except nats_errors.OutboundBufferLimitError:
            raise ServerUnavailable(f"{subject}: the server is unavailable and the buffer of 8 MB is full") from None
        except (nats_errors.ConnectionClosedError, nats_errors.ConnectionDrainingError):
            raise ServerUnavailable(self._reason or "this bus is closed") from None

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], *, group: str = ""
    ) -> NatsSubscription:
        """Subscribe to a subject; in effect only after a `barrier`."""
        if self._lost.is_set():
            raise ServerUnavailable(self._reason)
        subscription = await self._client.subscribe(subject, queue=group, cb=callback)
        self._subscriptions.append(subscription)
        return subscription

    async def receive(self, subject: str, receive: Receive, *, group: str = "") -> NatsSubscription:
        """Subscribe to a subject, like `subscribe`.

        `receive` is called as soon as a message is read, outside of any task.
        """
        if self._lost.is_set():
            raise ServerUnavailable(self._reason)
        subscription = await self._client.subscribe_directly(subject, receive, group=group)
        self._subscriptions.append(subscription)
        return subscription

    async def unsubscribe(self, subscription: NatsSubscription) -> None:
        """End a subscription."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        with suppress(nats_errors.Error, OSError, RuntimeError):
            await subscription.unsubscribe()

    async def barrier(self) -> None:
        """Return once the server has received all messages sent so far; waits while it restarts.

        The client's flush sends its PING before buffered messages, so the first flush only writes these.

        Raises:
            ServerUnavailable: the server does not answer.
            PermissionDenied: this user may not have one of its subscriptions.
        """
        deadline = self._loop.time() + _BARRIER_SECONDS
        reconnected = asyncio.Event()
        with self.on_reconnect(reconnected.set):
            for _ in range(2):
                while not await self._flush(reconnected, deadline):
                    reconnected.clear()
        self._denials.check_subscriptions()

    async def _flush(self, reconnected: asyncio.Event, deadline: float) -> bool:
        """True if the server has answered a PING; False if a reconnection lost the answer."""
        flushing = asyncio.ensure_future(self._client.flush(_BARRIER_SECONDS))
        reconnection = asyncio.ensure_future(reconnected.wait())
        try:
            await asyncio.wait(
                {flushing, reconnection}, timeout=deadline - self._loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            if flushing.done() and flushing.exception() is None:
                return True
            if flushing.done() and not self._client.is_closed:
                await asyncio.wait({reconnection}, timeout=deadline - self._loop.time())
            if reconnection.done() and not self._lost.is_set():
                return False
            raise ServerUnavailable(self._reason or f"the server does not answer within {_BARRIER_SECONDS:g} s")
        finally:
            flushing.cancel()
            reconnection.cancel()
            await asyncio.gather(flushing, reconnection, return_exceptions=True)

    def inbox(
        self, *, notify_reconnect: bool = False, notify_disconnect: bool = False, of_server: bool = True
    ) -> Inbox:
        """Create an inbox, a context manager, for replies of the server or of other processes.

        With `notify_reconnect` it receives `Reconnected` after a reconnection, with `notify_disconnect` `Disconnected`
        when the connection breaks.
        """
        self._request_count += 1
        prefix = f"{self._inbox}.{'server' if of_server else 'answers'}.{self._connection_id}"
        token = str(self._request_count)
        inbox = Inbox(
            self._inboxes,
            prefix,
            token,
            notify_reconnect=notify_reconnect,
            notify_disconnect=notify_disconnect,
        )
        if self._lost.is_set():
            inbox.put(ServerUnavailable(self._reason))
        return inbox

    def new_address(self) -> str:
        """Returns a unique subject for a separate subscription."""
        return f"{self._inbox}.server.{self._nuid.next().decode()}"

    async def request(self, subject: str, payload: bytes, *, timeout: float) -> Msg:
        """Send a request to the server itself and wait for the one answer.

        Raises:
            NoReply: there was no answer in time.
        """
        with self.inbox() as inbox:
            await self.publish(subject, payload, reply=inbox.address)
            try:
                return await inbox.next(timeout)
            except TimeoutError:
                raise NoReply(f"{subject}: the server did not answer within {timeout:g} s") from None

    @contextmanager
    def on_reconnect(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` after every reconnection and when the connection is lost.

        The server has dropped this client's requests.
        """
        key = object()
        self._reconnect_callbacks[key] = callback
        try:
            yield
        finally:
            del self._reconnect_callbacks[key]

    @property
    def is_up(self) -> bool:
        """True while the server is connected."""
        return bool(self._client.is_connected)

    @property
    def in_cluster(self) -> bool:
        """True if the server is one of several, by the URL or by its own announcement."""
        return len(self._client.servers) > 1

    @property
    def lost(self) -> str:
        """Reason why the connection is lost permanently; empty while it is not."""
        return self._reason if self._lost.is_set() else ""

    async def wait_lost(self) -> str:
        """Wait until the connection is lost permanently; returns the reason."""
        await self._lost.wait()
        return self._reason

    def give_up(self, reason: str) -> None:
        """Fail all pending and future operations: the server will not come back."""
        self._lose(reason)

    async def close(self) -> None:
        """Send buffered messages and disconnect."""
        self._closing = True
        for subscription in list(self._subscriptions):
            # If its last write fails, the client does not cancel their tasks.
            await self.unsubscribe(subscription)
        # The client writes buffered messages to a transport that may be closed; a closed encrypted one of asyncio
        # raises AttributeError.
        with suppress(nats_errors.Error, OSError, RuntimeError, TimeoutError, AttributeError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._client.close()
        self._lose(f"the bus of {self._name!r} is closed")

    # ------------------------------------------------------------ callbacks of the client

    def _put_into_inbox(self, message: Msg) -> None:
        inbox = self._inboxes.get(message.subject.rpartition(".")[2])
        if inbox is not None:
            inbox.put(message)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or repr(error)
        if not self._opened and (cause := cause_of(error, self._url)):
            self._not_secure = cause
            self._refused.set()
        if "authorization violation" in self._last_error.lower():
            self._refusals += 1
            if self._refusals >= _MAX_REFUSALS:
                self._refused.set()
                if self._opened:
                    self._giving_up = asyncio.create_task(self._client.close())
        if (denied := self._denials.note(self._last_error)) is not None:
            _logger.error("the NATS server denied a permission", bus=self._name, error=str(denied))
            for inbox in self._inboxes.values():
                if denied.subject == inbox.request_subject.lower():
                    inbox.put(denied)
            return
        now = self._loop.time()
        if not self._closing and now >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_SECONDS
            _logger.warning("the NATS connection reports an error", bus=self._name, error=self._last_error)

    async def _on_disconnected(self) -> None:
        self.reconnected_at = math.inf  # replies may come before the client reports the reconnection
        if not self._closing:
            _logger.warning("disconnected from the NATS server", bus=self._name, error=self._last_error)
        for inbox in self._inboxes.values():
            if inbox.notify_disconnect:
                inbox.put(Disconnected("the connection to the NATS server broke"))

    async def _on_reconnected(self) -> None:
        _logger.info("reconnected to the NATS server", bus=self._name)
        self._denials.forget()
        self._refusals = 0
        self.reconnected_at = self._loop.time()
        for inbox in self._inboxes.values():
            if inbox.notify_reconnect:
                inbox.put(Reconnected("the connection was re-established"))
        for callback in list(self._reconnect_callbacks.values()):
            callback()

    async def _on_closed(self) -> None:
        if not self._closing:
            reason = (
                f"the NATS connection of {self._name!r} is closed permanently:"
                f" {self._client.last_error or self._last_error}"
            )
            _logger.error("the NATS connection is lost", bus=self._name, reason=reason)
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self._lost.is_set():
            return
        self._reason = reason
        self._lost.set()
        for inbox in self._inboxes.values():
            inbox.put(ServerUnavailable(reason))
        for callback in list(self._reconnect_callbacks.values()):
            callback()
