"""Records the functions that handle a sample, in any Python process that has this folder on its PYTHONPATH.

See scripts/path.py.
A function counts if it runs for one of the messages of `AREAL_PATH_MESSAGES` or for an HTTP request, in the same task,
in tasks and threads that were started for it, or in a thread of an engine.
"""

import os
import sys
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType

OUT = os.environ.get("AREAL_PATH_OUT", "")
MESSAGES = frozenset(os.environ.get("AREAL_PATH_MESSAGES", "").split(","))
PACKAGE = os.environ.get("AREAL_PATH_PACKAGE", "")
HTTP_FILES = (f"{PACKAGE}/gateway/server.py", f"{PACKAGE}/gateway/plain_calls.py")
HTTP_PATH = "/chat/completions"

hop = ContextVar("hop", default="")
seen: set[tuple[CodeType, str]] = set()


def record(code: CodeType, where: str) -> None:
    """Write a function that was not seen before at this hop."""
    if (code, where) in seen:
        return
    seen.add((code, where))
    with Path(OUT, f"{os.getpid()}.txt").open("a", encoding="utf-8") as file:
        file.write(f"{time.monotonic()}\t{where}\t{code.co_filename}\t{code.co_firstlineno}\t{code.co_qualname}\n")


def called(frame: FrameType, _event: str, _argument: object) -> None:
    """Trace function: called at each call of a Python function; traces no lines."""
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
        return
    if code.co_qualname == "Actor.receive":
        message = f"{type(frame.f_locals['self']).__name__} {type(frame.f_locals['message']).__name__}"
        hop.set(message if message in MESSAGES else "")
    elif code.co_filename in HTTP_FILES and getattr(frame.f_locals.get("request"), "path", "").endswith(HTTP_PATH):
        hop.set("HTTP request")
    if where := hop.get():
        record(code, where)


if OUT:
    threading.settrace(called)
    sys.settrace(called)
