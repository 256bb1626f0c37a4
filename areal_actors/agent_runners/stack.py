"""Where code stands: the user's own line in a stack of frames, and the innermost one, which is mostly a library's."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

_NOT_THE_USERS = tuple(
    str(place)
    for place in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        Path(__file__).parent.parent,
        "<frozen",
    )
)


class Standpoint:
    """A line of the user's own code, and the innermost line, by file name."""

    __slots__ = ("innermost", "is_the_users", "line")

    def __init__(self, line: str, innermost: str, *, is_the_users: bool) -> None:
        self.is_the_users = is_the_users
        self.line = line
        """`agent.py:7`; the innermost line where no frame is the user's."""
        self.innermost = innermost
        """`ssl.py:713 in load_default_certs`."""

    def __str__(self) -> str:
        return self.line if self.innermost.startswith(f"{self.line} ") else f"{self.line} (in {self.innermost})"


def of_thread(identity: int | None) -> Standpoint | None:
    """Where a thread stands; None for one that has ended."""
    frame = sys._current_frames().get(identity or 0)  # noqa: SLF001 - the only way to see another thread's stack
    return of_frames(_outwards(frame)) if frame is not None else None


def of_coroutine(coroutine: Any) -> Standpoint | None:
    """Where a coroutine waits; None for one that has ended."""
    frames = list(_inwards(coroutine))
    return of_frames(iter(reversed(frames))) if frames else None


def of_frames(frames: Iterator[tuple[FrameType, int]]) -> Standpoint:
    """From frames with their lines, the innermost first; at least one."""
    innermost, line = next(frames)
    inner = f"{_place(innermost, line)} in {innermost.f_code.co_name}"
    own = next((found for found in chain([(innermost, line)], frames) if _is_the_users(found[0])), None)
    return Standpoint(_place(*(own or (innermost, line))), inner, is_the_users=own is not None)


def _outwards(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno or 0
        frame = frame.f_back


def _inwards(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of what a coroutine awaits, the outermost first; generators and asynchronous ones are awaited in the same way."""
    while awaited is not None:
        for kind, inner in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame, frame.f_lineno or 0
                awaited = getattr(awaited, inner)
                break
        else:
            return


def _is_the_users(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_NOT_THE_USERS)


def _place(frame: FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line}"
