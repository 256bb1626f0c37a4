"""The start of an inference server: waits until it is ready and has sampled a token, and describes what it does."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import structlog

from areal_actors.core.errors import EngineError, EngineUnavailable, RequestError, SetupError
from areal_actors.core.values import SamplingParams
from areal_actors.generation.servers.dialect import Segment, ServerDialect
from areal_actors.generation.servers.server_process import ServerClient

POLL_SECONDS = 0.5
SHOWN_SECONDS = 10.0
"""Time between two lines about a server that is starting."""
PHASE_CHARACTERS = 160

logger = structlog.get_logger(__name__)


class ServerStart:
    """Start of one server, whose process this machine has started or which was started elsewhere."""

    def __init__(self, dialect: ServerDialect, server: ServerClient, start_seconds: float, worker: str) -> None:
        self.dialect, self.start_seconds, self.worker = dialect, start_seconds, worker
        self.closed = False
        """True once the engine is closed, which ends the wait."""
        self._server = server
        self._ready = False
        self._lock = asyncio.Lock()

    async def until_ready(self) -> bool:
        """Wait until the server samples; returns True to the first caller that finds it so.

        Raises:
            SetupError: the server ended by itself while it started, or was not ready within
                `generation.server.start_seconds`.
            EngineUnavailable: it was killed.
        """
        async with self._lock:
            if self._ready:
                return False
            limit, began, shown = self.start_seconds, time.monotonic(), time.monotonic()
            while not await self._answers():
                process, seconds = self._server.process, time.monotonic() - began
                if process is not None and (ended := process.describe_end()):
                    raise EngineUnavailable(ended) if process.was_killed() else SetupError(ended)
                if self.closed:
                    raise EngineError("the generation engine is closed")
                if seconds > limit:
                    raise SetupError(
                        f"{self.phase()}; it was not ready within generation.server.start_seconds = {limit:g}"
                    )
                if time.monotonic() - shown > SHOWN_SECONDS:
                    logger.info(self.phase(), seconds=round(seconds))
                    shown = time.monotonic()
                await asyncio.sleep(POLL_SECONDS)
            await self._try_out()
            self._ready = True
            logger.info("the server is ready", server=self.dialect.title, seconds=round(time.monotonic() - began, 1))
            return True

    def phase(self) -> str:
        """Returns what the server is doing while it starts, with the last line of its output.

        Empty once it is ready.
        """
        if self._ready:
            return ""
        line = "" if self._server.process is None else self._server.process.tail(1)[:PHASE_CHARACTERS]
        return f"{self.dialect.title} at {self._server.url} is starting{': ' if line else ''}{line}"

    async def _try_out(self) -> None:
        """Sample one token, since a server may report that it is ready and end at its first request.

        An unsupported model is an example.

        Raises:
            SetupError: no token was sampled.
            EngineUnavailable: the server was killed, or one that was started elsewhere is gone.
        """
        segment = Segment(f"{self.worker}.first", [0], SamplingParams(max_tokens=1), 1, (), streamed=False)
        try:
            async with aclosing(self.dialect.sample(self._server, segment)) as parts:
                async for _ in parts:
                    pass
        except (EngineError, RequestError) as error:
            process = self._server.process
            await asyncio.sleep(POLL_SECONDS)  # until the end of a server that was killed can be seen
            if isinstance(error, EngineUnavailable) and (process is None or process.was_killed()):
                raise
            output = f"; the end of {process.log}:\n{process.tail()}" if process is not None else ""
            raise SetupError(f"{self.dialect.title} is ready but cannot sample a token ({error}){output}") from error

    async def _answers(self) -> bool:
        try:
            await asyncio.to_thread(self._server.find_address)
            return await self.dialect.is_ready(self._server)
        except EngineUnavailable:
            return False
