"""Asks a server every second how busy it is."""

from __future__ import annotations

import asyncio

import structlog

from areal_actors.core.errors import EngineError
from areal_actors.generation.servers.dialect import ServerDialect, ServerUsage
from areal_actors.generation.servers.server_process import ServerClient

INTERVAL_SECONDS = 1.0

logger = structlog.get_logger(__name__)


class UsageWatch:
    """The last report of a server; a server that gives none counts as idle."""

    def __init__(self, dialect: ServerDialect, server: ServerClient) -> None:
        self.usage = ServerUsage()
        self._dialect, self._server = dialect, server

    async def run(self) -> None:
        """Ask until cancelled."""
        complained = False
        while True:
            try:
                self.usage, complained = await self._dialect.usage(self._server), False
            except EngineError as error:
                self.usage = ServerUsage()
                if not complained:
                    logger.warning("the server does not report its load: it counts as idle", error=str(error))
                complained = True
            await asyncio.sleep(INTERVAL_SECONDS)
