"""The live display on the alternate screen of a terminal.

It has the whole screen, and leaves the ordinary one as it was.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from areal_actors.display.view import RunView

REFRESH_SECONDS = 0.5
"""A frame of a large screen costs about 10 ms of CPU time."""
ANSWER_SECONDS = 0.1
"""Delay with which the answer to a signal is shown."""
NOTICES_KEPT = 3


def is_screen(console: Console) -> bool:
    """Returns True for a terminal on which a display can be drawn; others get a line per event."""
    return console.is_terminal and not console.is_dumb_terminal


@asynccontextmanager
async def full_screen(view: RunView, console: Console) -> AsyncIterator[None]:
    """Show the view on the whole screen, in the terminal's size at each moment.

    Standard error is collected meanwhile, as it would be overwritten: the view shows its last lines, and all of it is
    written at the end.
    """
    # What rich itself would print above the display is overwritten on an alternate screen.
    live = Live(view, console=console, auto_refresh=False, screen=True, redirect_stdout=False, redirect_stderr=False)
    view.fills_screen = True
    with _collected_errors(view), live as screen:
        painting = asyncio.create_task(_paint(screen, view))
        try:
            yield
        finally:
            view.fills_screen = False
            painting.cancel()
            with suppress(asyncio.CancelledError):
                await painting


async def _paint(screen: Live, view: RunView) -> None:
    while True:
        shown, waited = view.interrupted, 0.0
        screen.refresh()
        while waited < REFRESH_SECONDS and view.interrupted == shown:
            await asyncio.sleep(ANSWER_SECONDS)
            waited += ANSWER_SECONDS


@contextmanager
def _collected_errors(view: RunView) -> Iterator[None]:
    errors, collected = sys.stderr, _Collected(view)
    loggers = [
        log_handler
        for log_handler in logging.getLogger().handlers
        if isinstance(log_handler, logging.StreamHandler) and log_handler.stream is errors
    ]
    for handler in loggers:
        handler.setStream(collected)
    try:
        with redirect_stderr(collected):
            yield
    finally:
        for handler in loggers:
            handler.setStream(errors)
        errors.write(collected.getvalue())
        errors.flush()


class _Collected(io.StringIO):
    """Standard error while the display has the screen."""

    def __init__(self, view: RunView) -> None:
        super().__init__()
        self._view = view

    def write(self, text: str) -> int:
        """Keep the text, and show its last lines."""
        written = super().write(text)
        lines = [line for line in self.getvalue().splitlines() if line.strip()]
        self._view.notices = [Text.from_ansi(line).plain for line in lines[-NOTICES_KEPT:]]
        return written
