"""One call in a thread of its own: a pool's few threads would be held for good by code that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What the function returns or raises. Cancelling no longer waits for it; a daemon thread ends with the process at the latest."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def tell(returned: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((returned, error))

    def work() -> None:
        returned, failure = None, None
        try:
            returned = context.run(function, *arguments, **named)
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            failure = error
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(tell, returned, failure)

    threading.Thread(target=work, daemon=True, name=f"in_thread {getattr(function, '__qualname__', '')}").start()
    returned, error = await ended
    if error is not None:
        raise error
    return returned
