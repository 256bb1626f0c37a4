"""CPU time and memory of this process, for heartbeats."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

SCHEDULING = Path("/proc/self/schedstat")
"""Nanoseconds on a core, nanoseconds of waiting for one, and time slices of the main thread."""


def process_usage() -> dict[str, Any]:
    """Returns the fields of a `Heartbeat` about its process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "pid": os.getpid(),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_memory_bytes": usage.ru_maxrss * unit,
        "cpu_wait_seconds": _waited_for_a_core(),
    }


def _waited_for_a_core() -> float:
    """Returns the seconds for which the main thread was ready to run without a core; 0 where Linux does not count."""
    try:
        return int(SCHEDULING.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
