"""Connections to model servers: one pool for all clients of an event loop, which ends with the loop."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator
from functools import cache, lru_cache
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

KEEP_ALIVE_SECONDS = 5.0
"""Time for which an idle connection is kept, as the OpenAI SDK keeps it: servers keep theirs longer."""

PROXY_VARIABLES = tuple(
    name for lower in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (lower, lower.upper())
)

_pools: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession]]] = {}


async def open_pool() -> aiohttp.ClientSession:
    """Return the pool of the running event loop."""
    loop = asyncio.get_running_loop()
    if (pool := _pools.get(loop)) is None:
        for closed in [other for other in _pools if other.is_closed()]:
            del _pools[closed]
        holder = _hold_pool(loop)
        pool = _pools[loop] = (await anext(holder), holder)
    return pool[0]


async def _hold_pool(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[aiohttp.ClientSession]:
    """Yield a pool; it is closed with this generator, which the loop closes at its end, like all that still run."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),
    )
    try:
        yield session
    finally:
        _pools.pop(loop, None)
        await session.close()


def proxy_of(base_url: str) -> str | None:
    """Return the proxy of the environment for this address, if it has one."""
    scheme, host = urlsplit(base_url)[:2]
    return _find_proxy(scheme, host, tuple(map(os.environ.get, PROXY_VARIABLES)))


@lru_cache(maxsize=256)
def _find_proxy(scheme: str, host: str, _variables: tuple[str | None, ...]) -> str | None:
    """See `proxy_of`; `_variables` are those of the environment on which the result depends."""
    proxies = getproxies()
    if not proxies or proxy_bypass(host):
        return None
    return proxies.get(scheme) or proxies.get("all")


def verification_of(base_url: str) -> ssl.SSLContext | bool:
    """Return the authorities for an address: those that the environment names, else those of the system."""
    if not base_url.startswith("https"):
        return True
    return _load_authorities(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _load_authorities(file: str | None, folder: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file, capath=folder)
