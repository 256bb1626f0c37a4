"""Runs one call in a new thread: code that hangs would occupy a pool's thread permanently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from areal_actors.rollout.stack import thread_location


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in a daemon thread; returns its value or raises its error. Cancellation abandons the thread."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def set_outcome(returned: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((returned, error))

    def work() -> None:
        returned, failure = None, None
        try:
            returned = context.run(function, *arguments, **named)
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            failure = error
        with suppress(RuntimeError):  # the loop is closed: no waiter is left
            loop.call_soon_threadsafe(set_outcome, returned, failure)

    thread = threading.Thread(target=work, daemon=True, name=f"in_thread {getattr(function, '__qualname__', '')}")
    thread.start()
    try:
        returned, error = await ended
    except asyncio.CancelledError as cancelled:
        if (at := thread_location(thread.ident)) is not None:
            cancelled.add_note(f"; its thread is left behind at {at}")
        raise
    if error is not None:
        raise error
    return returned
