"""Runs one call in a new thread: code that hangs would occupy a pool's thread permanently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from areal_actors.rollout.stack import thread_location


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in a daemon thread; returns its value or raises its error. Cancellation abandons the thread."""
    outcome: Future[tuple[Any, BaseException | None]] = Future()
    outcome.set_running_or_notify_cancel()  # a cancelled caller does not cancel it
    context = copy_context()

    def work() -> None:
        try:
            outcome.set_result((context.run(function, *arguments, **named), None))
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            outcome.set_result((None, error))

    thread = threading.Thread(target=work, daemon=True, name=f"in_thread {getattr(function, '__qualname__', '')}")
    thread.start()
    try:
        returned, error = await asyncio.wrap_future(outcome)
    except asyncio.CancelledError as cancelled:
        if (at := thread_location(thread.ident)) is not None:
            cancelled.add_note(f"; its thread is left behind at {at}")
        raise
    if error is not None:
        raise error
    return returned
