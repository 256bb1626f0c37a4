"""Locations of running code: the innermost line of the user's code in a stack, and the innermost line overall."""

from __future__ import annotations

import inspect
import selectors
import sys
import sysconfig
from asyncio import base_events, events, selector_events
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple

_LIBRARY_PATHS = tuple(
    str(place)
    for place in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        Path(__file__).parent.parent,
        "<frozen",
    )
)

_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR

_EVENT_LOOP = frozenset(str(module.__file__) for module in (base_events, events, selector_events, selectors))


class CodeLocation(NamedTuple):
    """The innermost line of the user's code, and the innermost line overall, by file name."""

    line: str
    """`agent.py:7`; the innermost line if no frame is the user's."""
    innermost: str
    """`ssl.py:713 in load_default_certs`."""
    is_user_code: bool
    is_event_loop: bool
    """True if the thread executes no callback: it waits for events or for a processor in the event loop's own code."""
    is_awaited: bool = False
    """True if the user's line awaits a coroutine of a library that executes: its time is not the line's own."""

    def __str__(self) -> str:
        return self.line if self.innermost.startswith(f"{self.line} ") else f"{self.line} (in {self.innermost})"


def thread_location(identity: int | None) -> CodeLocation | None:
    """The location of a thread; None if it has ended."""
    frame = sys._current_frames().get(identity or 0)  # noqa: SLF001 - the only way to see another thread's stack
    return user_location(list(walk_stack(frame))) if frame is not None else None


def coroutine_location(coroutine: Any) -> CodeLocation | None:
    """The location at which a coroutine waits; None if it has ended."""
    frames = list(_awaited_frames(coroutine))
    return user_location(frames[::-1]) if frames else None


def user_location(frames: Sequence[tuple[FrameType, int]]) -> CodeLocation:
    """The location in a non-empty stack of frames with lines, innermost first."""
    innermost, line = frames[0]
    place = next((place for place, frame in enumerate(frames) if _is_user_code(frame[0])), None)
    own = None if place is None else frames[place]
    is_awaited = bool(place) and bool(frames[(place or 0) - 1][0].f_code.co_flags & _COROUTINE)
    is_event_loop = own is None and innermost.f_code.co_filename in _EVENT_LOOP
    inner = f"{_file_line(innermost, line)} in {innermost.f_code.co_name}"
    return CodeLocation(_file_line(*(own or frames[0])), inner, own is not None, is_event_loop, is_awaited)


def _awaited_frames(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """Frames of a coroutine and what it awaits, outermost first; includes generators and asynchronous generators."""
    while awaited is not None:
        for kind, inner in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame, frame.f_lineno or 0
                awaited = getattr(awaited, inner)
                break
        else:
            return


def _is_user_code(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_LIBRARY_PATHS)


def _file_line(frame: FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line}"
