"""Work on long requests, beside the event loop: other calls go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

LONG_BYTES: Final = 128 << 10
"""Requests of so many bytes: tokenising them takes a sixth of a second, in which nobody else would be served."""


class LongWork(ThreadPoolExecutor):
    """A few threads: the tokenizers let go of the interpreter, and Python code takes turns with the event loop."""

    async def run(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function, here if the request is short, and in a thread if it is long."""
        if size < LONG_BYTES:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self, partial(function, *args, **kwargs))
