"""Figures of one section: a process of its own measures and writes them as lines of JSON, one when each is known.

Only the standard library is imported here, so that a machine without torch or transformers gets a report, too.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

Figures = Mapping[str, float | int | str]


class Report:
    """Runs the cases of a section and reports their figures."""

    def __init__(self, output: IO[str], deadline: float) -> None:
        self._output = output
        self._deadline = deadline
        self._longest = 0.0
        """Seconds of the longest case."""

    def seconds_left(self) -> float:
        """Seconds until the section is stopped."""
        return self._deadline - time.time()

    def case(self, case: str, measure: Callable[[], Iterable[Figures]]) -> bool:
        """Measure a case, and return whether it was measured; an exception is reported and ends this case only.

        A case that starts with less time than the longest one before took is skipped.
        """
        if (left := self.seconds_left()) < self._longest:
            self.skip(case, f"{max(left, 0):.0f} s left, and the longest case took {self._longest:.0f} s")
            return False
        began, measured = time.monotonic(), False
        try:
            for figures in measure():
                self._write({"event": "figures", "case": case, "figures": dict(figures)})
            measured = True
        except Exception as error:  # noqa: BLE001 - the other cases and sections are measured in spite of any error
            self._write({"event": "error", "case": case, "error": describe(error), "traceback": traceback.format_exc()})
        self._longest = max(self._longest, time.monotonic() - began)
        free_memory()
        return measured

    def skip(self, case: str, reason: str) -> None:
        """Report a case that is not measured."""
        self._write({"event": "skipped", "case": case, "reason": reason})

    def fail(self, case: str, error: str, details: str) -> None:
        """Report a failure that is not an exception."""
        self._write({"event": "error", "case": case, "error": error, "traceback": details})

    def memory(self, **sizes: int) -> None:
        """Report peaks of memory, in bytes."""
        self._write({"event": "memory", "bytes": sizes})

    def _write(self, event: Mapping[str, Any]) -> None:
        self._output.write(json.dumps(event) + "\n")
        self._output.flush()


def describe(error: BaseException) -> str:
    """Return the first line of an error, after its type."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def free_memory() -> None:
    """Return the memory of a case that ended to the device."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def peak_memory() -> dict[str, int]:
    """Return peaks of this process in bytes: resident memory, and on CUDA what tensors took and what torch reserved."""
    peaks = {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        peaks |= {
            "cuda_allocated": torch.cuda.max_memory_allocated(),
            "cuda_reserved": torch.cuda.max_memory_reserved(),
        }
    return peaks
