"""CPU time and memory of this process, for heartbeats."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any


def process_usage() -> dict[str, Any]:
    """Returns the fields `pid`, `cpu_seconds` and `peak_memory_bytes` of a `Heartbeat`."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "pid": os.getpid(),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_memory_bytes": usage.ru_maxrss * unit,
    }
