"""Engines of genuine inference servers, and of recorded ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from support.genuine_servers import Genuine
from support.recorded_server import RecordedServer
from support.tiny_engine import MARK

from areal_actors.core.values import Constraint
from areal_actors.generation.servers.http_engine import HttpEngine
from areal_actors.tokenization.tool_parsers.grammar import Grammar


def calls_grammar() -> Constraint:
    """A grammar as of tool calls: two delimiters, of which one is a special token, around free text."""
    grammar = Grammar()
    return grammar.constraint(f"{grammar.delimiter(MARK)} {grammar.rule('/[a-d]{3}/')} {grammar.delimiter('[end]')}")


def served(stack: ExitStack, server: RecordedServer) -> str:
    """Serve recorded answers from a thread of their own, as each test has an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = server.serving()
    asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(30)

    def stop() -> None:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    stack.callback(stop)
    return server.url


@asynccontextmanager
async def serving(genuine: Genuine, version: int = 0) -> AsyncIterator[HttpEngine]:
    engine = genuine.make()
    try:
        await engine.load_weights(genuine.versions[version], version)
        yield engine
    finally:
        await engine.close()
