"""Failures of agents, each formatted as one line."""

from __future__ import annotations

import signal
import sysconfig
import traceback
from pathlib import Path

HERE = Path(__file__).parent
INLINE = HERE.parent / "agent_runners" / "inline_runner.py"


class AgentLoadError(Exception):
    """Raised when a name cannot be loaded or is no agent; the message has the remedy."""


class AgentFault(Exception):
    """Raised when an agent failed; the message continues "agent <name> …"."""


def format_error(error: BaseException) -> str:
    """An error's type, its first line, and the innermost line of the user's code."""
    elsewhere = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(HERE), str(INLINE), "<frozen")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(elsewhere)]
    place = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {_first_line(error)}{place}".encode(errors="replace").decode()


def _first_line(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - the class is the user's
        return ""
    return lines[0][:300] if lines else ""


def describe_exit(status: int) -> str:
    """Describe a process's exit; a negative status is the signal that killed it."""
    if status >= 0:
        return f"ended its process with exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    hint = " (the system kills so when memory runs out)" if -status == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
