"""Supervises one nats-server: restarts it on its store, ports and credentials when it dies or no longer answers.

Clients reconnect, so an outage is only a pause for them. Failures that a restart cannot repair end the supervision with
an error sentence: the binary is missing, the store is unusable, the disk is full, or the server died too often.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

import aiohttp
import msgspec
import structlog

from areal_bus.descriptors import REMEDY as DESCRIPTORS_REMEDY
from areal_bus.descriptors import is_out_of_descriptors
from areal_bus.errors import ServerKilled, ServerUnavailable
from areal_bus.message import FrozenMeta
from areal_bus.server import EmbeddedServer
from areal_bus.server_config import LOOPBACK, Ports
from areal_bus.shared_times import seconds_to_next
from areal_bus.tls import Certificate
from areal_bus.users import BusUsers

PROBE_SECONDS: Final = 1.0
_CALM_FACTOR: Final = 3
"""Multiple of it after which a server that has answered is probed again; its end is noticed at once."""
_PROBE_TIMEOUT: Final = 3.0
_PORT_SECONDS: Final = 20.0
"""A reconnecting client may occupy the server's port for a moment."""
_PAUSE_SECONDS: Final = 0.2
_MIN_FREE_BYTES: Final = 64 << 20
"""Free disk space required to restart a server whose disk was full."""
_ADOPT_SECONDS: Final = 10.0
_ADOPT_POLL_SECONDS: Final = 0.01
_MIN_PROBES: Final = 3
"""Unanswered probes in a row after which the server counts as stuck: a single one may be due to a pause of this
process."""

_logger = structlog.get_logger(__name__)


class RestartSettings(msgspec.Struct, metaclass=FrozenMeta):
    """Restart policy of a server."""

    max_restarts: int = 10
    window_seconds: float = 60.0
    answer_seconds: float = 15.0
    """Seconds without an answer after which a server is killed and restarted."""


class _Health(msgspec.Struct):
    error: str = ""


class _Variables(msgspec.Struct):
    config_load_time: str = ""


class Outage(msgspec.Struct, metaclass=FrozenMeta):
    """A period in which a server was down, ended by a restart."""

    reason: str
    seconds: float
    """Duration from its last answer until it accepted connections again."""
    restarts: int
    """Number of restarts since the first start."""


class ServerKeeper:
    """A running server and its supervisor."""

    def __init__(self, server: EmbeddedServer, settings: RestartSettings) -> None:
        self.server = server
        self.settings = settings
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with an error sentence when the server is down and cannot be restarted."""
        self.outages: asyncio.Queue[Outage] = asyncio.Queue()
        self.down_since: float | None = None
        """Time from which on the server is dead or unresponsive, by `time.monotonic`; None while it answers."""
        self.restarts = 0
        self._recent: list[float] = []
        self._answered = time.monotonic()
        self._supervision: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        folder: Path,
        settings: RestartSettings,
        *,
        sync_interval: str,
        users: BusUsers | None = None,
        host: str = LOOPBACK,
        port: int = 0,
        certificate: Certificate | None = None,
    ) -> Self:
        """Start a server and supervise it; one that is killed while it starts is restarted.

        `port` is for clients; 0: a free one.

        Raises:
            ServerUnavailable: it cannot be started.
        """
        ports = Ports(client=port) if port else None
        start = partial(
            EmbeddedServer.start,
            folder,
            ports=ports,
            sync_interval=sync_interval,
            users=users,
            host=host,
            certificate=certificate,
        )
        for _ in range(settings.max_restarts):
            with suppress(ServerKilled):
                return await cls.keep(await start(), settings)
        return await cls.keep(await start(), settings)

    @classmethod
    async def keep(cls, server: EmbeddedServer, settings: RestartSettings | None = None) -> Self:
        """Supervise a server that has just been started."""
        keeper = cls(server, settings or RestartSettings())
        keeper._supervision = asyncio.create_task(keeper._supervise())
        return keeper

    async def stop(self) -> None:
        """Stop the supervision, then the server."""
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
        await self.server.stop()

    async def set_users(self, users: BusUsers) -> None:
        """Have the server adopt these users; returns when it has, or was restarted with them.

        Raises:
            ServerUnavailable: it does not adopt them.
        """
        server = self.server
        try:
            async with asyncio.timeout(_ADOPT_SECONDS), aiohttp.ClientSession() as session:
                before = await _config_time(session, server.monitoring_url)
                server.load_users(users)
                while self.server is server and await _config_time(session, server.monitoring_url) in (  # noqa: ASYNC110
                    "",
                    before,
                ):
                    await asyncio.sleep(_ADOPT_POLL_SECONDS)
        except TimeoutError:
            log = server.folder / "nats-server.log"
            raise ServerUnavailable(
                f"nats-server has not adopted new users within {_ADOPT_SECONDS:g} s; see {log}"
            ) from None
        finally:
            server.forget_config()
        if self.server is not server and self.server.users is not users:
            await self.set_users(users)

    # ------------------------------------------------------------ supervision

    async def _supervise(self) -> None:
        while not self.failed.done():
            try:
                reason = await self._wait_down()
                self.down_since = self.down_since or self._answered
                _logger.warning("nats-server is down and is restarted", reason=reason)
                self._charge_restart(reason)
                await self._restart(reason)
            except ServerUnavailable as error:
                self.failed.set_result(_sentence(error))
                return
            seconds = time.monotonic() - self.down_since
            self.down_since, self._answered = None, time.monotonic()
            self.outages.put_nowait(Outage(reason=reason, seconds=seconds, restarts=self.restarts))
            _logger.warning("nats-server was restarted", pid=self.server.pid, seconds=seconds)

    def _charge_restart(self, reason: str) -> None:
        """Charge one restart to the budget.

        Raises:
            ServerUnavailable: the budget is exhausted.
        """
        now = time.monotonic()
        self._recent = [moment for moment in self._recent if now - moment < self.settings.window_seconds]
        if len(self._recent) >= self.settings.max_restarts:
            limit = f"{self.settings.max_restarts} restarts in {self.settings.window_seconds:g} s"
            raise ServerUnavailable(
                f"{reason}, after {limit}; see {self.server.folder / 'nats-server.log'}, or raise bus.max_restarts"
            )
        self._recent.append(now)

    async def _restart(self, reason: str) -> None:
        deadline = time.monotonic() + _PORT_SECONDS
        while True:
            try:
                self.server = await self.server.restart()
            except ServerKilled as error:
                self._charge_restart(_sentence(error))
            except ServerUnavailable as error:
                if "listens on its port" not in str(error) or time.monotonic() >= deadline:
                    raise ServerUnavailable(f"{reason}, and it cannot be restarted: {_sentence(error)}") from error
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self.restarts += 1
                return

    async def _wait_down(self) -> str:
        """Wait until the server is dead, killing it if it does not answer or cannot write; returns the reason.

        Raises:
            ServerUnavailable: it cannot write, and a restart would not help.
        """
        dead = asyncio.ensure_future(self.server.wait_dead())
        unresponsive = asyncio.create_task(self._wait_unresponsive())
        try:
            await asyncio.wait({dead, unresponsive}, return_when=asyncio.FIRST_COMPLETED)
            if dead.done():
                return dead.result().partition(";")[0]
            reason = unresponsive.result()
            self.server.kill()
            await dead
            return reason
        finally:
            for task in (dead, unresponsive):
                task.cancel()
            await asyncio.gather(dead, unresponsive, return_exceptions=True)

    async def _wait_unresponsive(self) -> str:
        """Wait until the server has not answered for too long, or needs a restart to write again; returns the reason.

        Raises:
            ServerUnavailable: its disk is full, or cannot be written.
        """
        unanswered = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT)) as session:
            while unanswered < _MIN_PROBES or time.monotonic() - self._answered < self.settings.answer_seconds:
                await asyncio.sleep(seconds_to_next(PROBE_SECONDS * (1 if unanswered else _CALM_FACTOR)))
                answer = await _health(session, self.server.monitoring_url)
                if answer is not None and "write error" in answer:
                    return _after_write_error(self.server, answer)
                if answer is not None:
                    unanswered, self._answered, self.down_since = 0, time.monotonic(), None
                else:
                    unanswered += 1
                    self.down_since = self.down_since or self._answered
        return (
            f"nats-server (pid {self.server.pid}) did not answer for {self.settings.answer_seconds:g} s and was killed"
        )


async def _health(session: aiohttp.ClientSession, url: str) -> str | None:
    """Returns the server's health report; None if it does not answer."""
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with session.get(f"{url}/healthz") as answer:
            return await answer.text()
    return None


async def _config_time(session: aiohttp.ClientSession, url: str) -> str:
    """Returns the time at which the server read its configuration; empty if it does not answer."""
    with suppress(aiohttp.ClientError, OSError, msgspec.MsgspecError):
        async with session.get(f"{url}/varz", timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT)) as answer:
            return msgspec.json.decode(await answer.read(), type=_Variables).config_load_time
    return ""


def _after_write_error(server: EmbeddedServer, health: str) -> str:
    """Returns the reason for a restart after a write error, since the stream stays read-only until then.

    Raises:
        ServerUnavailable: a restart would not help.
    """
    with suppress(msgspec.MsgspecError):
        health = msgspec.json.decode(health, type=_Health).error
    if is_out_of_descriptors(OSError(health)):
        return (
            "nats-server had no file descriptors left to write the log, and was killed to write again;"
            f" {DESCRIPTORS_REMEDY}"
        )
    if "no space left" not in health:
        raise ServerUnavailable(f"nats-server cannot write the log: {health}; check the disk of {server.folder}")
    free = shutil.disk_usage(server.folder).free
    if free < _MIN_FREE_BYTES:
        raise ServerUnavailable(
            f"the disk of {server.folder} is full ({free >> 20} MB free), and nats-server cannot write the log; free"
            " space and go on"
        )
    return f"the disk of {server.folder} was full for a moment, and nats-server was killed to write again"


def _sentence(error: ServerUnavailable) -> str:
    """Returns the message of an error without the end of the server's log."""
    return str(error).partition("; output:\n")[0].partition("\n")[0]
