"""Keeps one nats-server alive: started again on its own store, ports and credentials when it dies or no longer answers.

Clients try to reconnect meanwhile, so an outage is a pause to them. What cannot be helped by a restart ends the keeping with
one sentence: the binary is gone, the store cannot be used, the disk is full, or the server died too often.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import aiohttp
import msgspec
import structlog

from bus.errors import ServerKilled, ServerUnavailable
from bus.message import FrozenMeta
from bus.server import EmbeddedServer
from bus.users import BusUsers

PROBE_SECONDS: Final = 1.0
_PROBE_TIMEOUT: Final = 3.0
_PORT_SECONDS: Final = 20.0
"""A client that tries to reconnect may hold the server's port for a moment."""
_PAUSE_SECONDS: Final = 0.2
_ENOUGH_BYTES: Final = 64 << 20
"""Free space with which a server that had none is started again."""
_LEAST_PROBES: Final = 3
"""Unanswered in a row before the server is taken for stuck: one alone may be this process that was stopped."""

_logger = structlog.get_logger(__name__)


class KeepingSettings(msgspec.Struct, metaclass=FrozenMeta):
    """When a server is started again, and when no more."""

    max_restarts: int = 10
    window_seconds: float = 60.0
    answer_seconds: float = 15.0
    """A server that has answered nothing for so long is killed and started again."""


class _Health(msgspec.Struct):
    error: str = ""


class Outage(msgspec.Struct, metaclass=FrozenMeta):
    """A server was away, and is there again."""

    reason: str
    seconds: float
    """From when it was last known to answer until it took connections again."""
    restarts: int
    """Since it was started first."""


class ServerKeeper:
    """A running server and its supervisor."""

    def __init__(self, server: EmbeddedServer, settings: KeepingSettings) -> None:
        self.server = server
        self.settings = settings
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with a sentence when there is no server any more and none can be started."""
        self.outages: asyncio.Queue[Outage] = asyncio.Queue()
        self.away_since: float | None = None
        """Since when the server is dead or silent, by `time.monotonic`; None while it answers."""
        self.restarts = 0
        self._recent: list[float] = []
        self._answered = time.monotonic()
        self._keeping: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, folder: Path, settings: KeepingSettings, *, sync_interval: str, users: BusUsers | None = None) -> Self:
        """Start a server and keep it; one that somebody kills while it starts is started again.

        Raises:
            ServerUnavailable: it cannot be started.
        """
        for _ in range(settings.max_restarts):
            with suppress(ServerKilled):
                return await cls.keep(await EmbeddedServer.start(folder, sync_interval=sync_interval, users=users), settings)
        return await cls.keep(await EmbeddedServer.start(folder, sync_interval=sync_interval, users=users), settings)

    @classmethod
    async def keep(cls, server: EmbeddedServer, settings: KeepingSettings | None = None) -> Self:
        """Take over a server that has just been started."""
        keeper = cls(server, settings or KeepingSettings())
        keeper._keeping = asyncio.create_task(keeper._keep())
        return keeper

    async def stop(self) -> None:
        """End the keeping, then the server."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self.server.stop()

    def away_seconds(self) -> float:
        """For how long the server has been dead or silent; 0 while it answers."""
        return 0.0 if self.away_since is None else time.monotonic() - self.away_since

    # ------------------------------------------------------------ one server after the other

    async def _keep(self) -> None:
        while not self.failed.done():
            try:
                reason = await self._wait_gone()
                self.away_since = self.away_since or self._answered
                _logger.warning("nats-server is gone and is started again", reason=reason)
                self._count(reason)
                await self._restart(reason)
            except ServerUnavailable as error:
                self.failed.set_result(_sentence(error))
                return
            seconds = time.monotonic() - self.away_since
            self.away_since, self._answered = None, time.monotonic()
            self.outages.put_nowait(Outage(reason=reason, seconds=seconds, restarts=self.restarts))
            _logger.warning("nats-server runs again", pid=self.server.pid, seconds=seconds)

    def _count(self, reason: str) -> None:
        """Take a restart from the budget.

        Raises:
            ServerUnavailable: there is none left.
        """
        now = time.monotonic()
        self._recent = [moment for moment in self._recent if now - moment < self.settings.window_seconds]
        if len(self._recent) >= self.settings.max_restarts:
            limit = f"{self.settings.max_restarts} restarts in {self.settings.window_seconds:g} s"
            raise ServerUnavailable(f"{reason}, after {limit}; see {self.server.folder / 'nats-server.log'}, or raise bus.max_restarts")
        self._recent.append(now)

    async def _restart(self, reason: str) -> None:
        deadline = time.monotonic() + _PORT_SECONDS
        while True:
            try:
                self.server = await self.server.restart()
            except ServerKilled as error:
                self._count(_sentence(error))
            except ServerUnavailable as error:
                if "listens on its port" not in str(error) or time.monotonic() >= deadline:
                    raise ServerUnavailable(f"{reason}, and it cannot be started again: {_sentence(error)}") from error
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self.restarts += 1
                return

    async def _wait_gone(self) -> str:
        """Wait until the server is dead, killing it if it does not answer or cannot write; why it is gone, in words.

        Raises:
            ServerUnavailable: it cannot write, and could not after another start.
        """
        dead = asyncio.ensure_future(self.server.wait_dead())
        silent = asyncio.create_task(self._wait_silent())
        try:
            await asyncio.wait({dead, silent}, return_when=asyncio.FIRST_COMPLETED)
            if dead.done():
                return dead.result().partition(";")[0]
            reason = silent.result()
            self.server.kill()
            await dead
            return reason
        finally:
            for task in (dead, silent):
                task.cancel()
            await asyncio.gather(dead, silent, return_exceptions=True)

    async def _wait_silent(self) -> str:
        """Wait until the server has not answered for too long or can write again only after another start; which it is, in words.

        Raises:
            ServerUnavailable: its disk is full, or refuses.
        """
        unanswered = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT)) as session:
            while unanswered < _LEAST_PROBES or time.monotonic() - self._answered < self.settings.answer_seconds:
                await asyncio.sleep(PROBE_SECONDS)
                answer = await _health(session, self.server.monitoring_url)
                if answer is not None and "write error" in answer:
                    return _after_write_error(self.server, answer)
                if answer is not None:
                    unanswered, self._answered, self.away_since = 0, time.monotonic(), None
                else:
                    unanswered += 1
                    self.away_since = self.away_since or self._answered
        return f"nats-server (pid {self.server.pid}) did not answer for {self.settings.answer_seconds:g} s and was killed"


async def _health(session: aiohttp.ClientSession, url: str) -> str | None:
    """What the server says of its health; None when it does not answer."""
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with session.get(f"{url}/healthz") as answer:
            return await answer.text()
    return None


def _after_write_error(server: EmbeddedServer, health: str) -> str:
    """A stream that could not be written stays so until the server's next start: why that one may help.

    Raises:
        ServerUnavailable: it cannot help.
    """
    with suppress(msgspec.MsgspecError):
        health = msgspec.json.decode(health, type=_Health).error
    if "no space left" not in health:
        raise ServerUnavailable(f"nats-server cannot write the log: {health}; check the disk of {server.folder}")
    free = shutil.disk_usage(server.folder).free
    if free < _ENOUGH_BYTES:
        raise ServerUnavailable(
            f"the disk of {server.folder} is full ({free >> 20} MB free), and nats-server cannot write the log; free space and go on"
        )
    return f"the disk of {server.folder} was full for a moment, and nats-server was killed to write again"


def _sentence(error: ServerUnavailable) -> str:
    """What an error says, without the server's own last lines."""
    return str(error).partition("; its last words")[0].partition("\n")[0]
