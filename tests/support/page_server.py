"""The server of a run's page over a log, within a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from areal_actors.web.access import Access
from areal_actors.web.server import PageServer, serving_page
from areal_actors.web.source import ENDED, LogSource
from areal_bus.recorded import LogCopy

PATIENT = 120.0


@asynccontextmanager
async def page_of(folder: Path, *, host: str = "127.0.0.1", what_ifs: Any = (), **source: Any) -> AsyncIterator[Any]:
    """Serve a page; yields its URL, its source and its server. Without a source the test itself gives events to it."""
    copy = LogCopy(folder / "copy.log", "a")
    read = LogSource(copy, **source)
    server, access = PageServer(read, "a", what_ifs), Access(host)
    async with serving_page(server, access, host, 0) as url:
        reading = asyncio.create_task(read.read()) if source else None
        try:
            yield url, read, server
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
    copy.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is true that only another task or process makes true."""
    async with asyncio.timeout(PATIENT):
        while not condition():  # noqa: ASYNC110 - it is not announced
            await asyncio.sleep(0.01)


async def until_ended(source: LogSource) -> None:
    await until(lambda: source.state == ENDED)
