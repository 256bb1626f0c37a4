"""Threads for long requests, whose tokenizing would block the event loop for all others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

LONG_BYTES: Final = 128 << 10
"""Size from which a request is long: tokenizing it takes a sixth of a second, which would block all other calls."""

P = ParamSpec("P")
R = TypeVar("R")


class LongWork(ThreadPoolExecutor):
    """A small thread pool for long requests.

    Tokenizers release the GIL, and Python code alternates with the event loop.
    """

    async def run(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function: inline for a short request, in a thread for a long one."""
        if size < LONG_BYTES:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self, partial(function, *args, **kwargs))
