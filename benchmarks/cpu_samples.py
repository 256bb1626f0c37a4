"""Samples of a process's CPU time: the functions on the stack after each millisecond of CPU that it has used.

A process that calls `install` counts from a first SIGUSR2 on, and writes the counts to its file on a second. Time in C
belongs to the Python function that called it; what the event loop itself uses, to the next function that it calls.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec

VARIABLE = "AREAL_CPU_SAMPLES"
"""Environment variable with the file; a process without it is not sampled."""
INTERVAL_SECONDS = 0.001


class CpuSamples(msgspec.Struct):
    """Counts of samples by function, as `file:name`."""

    total: int = 0
    own: dict[str, int] = {}
    """Samples in which the function itself ran."""
    whole: dict[str, int] = {}
    """Samples in which it, or what it called, ran."""


class CpuSampler:
    """Counts the samples of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own: Counter[str] = Counter()
        self._whole: Counter[str] = Counter()
        self._is_counting = False

    def toggle(self, *_: object) -> None:
        """Begin to count, or write what was counted."""
        if self._is_counting:
            self._write()
        else:
            signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
        self._is_counting = not self._is_counting

    def note(self, _: int, frame: FrameType | None) -> None:
        """Count the functions on the stack."""
        names: list[str] = []
        while frame is not None:
            names.append(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")
            frame = frame.f_back
        if names:
            self._own[names[0]] += 1
            self._whole.update(set(names))

    def _write(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        samples = CpuSamples(total=self._own.total(), own=dict(self._own), whole=dict(self._whole))
        partial = self._path.with_suffix(".part")
        partial.write_bytes(msgspec.json.encode(samples))
        partial.rename(self._path)


def install() -> None:
    """Sample this process, if the environment names a file."""
    if path := os.environ.get(VARIABLE):
        sampler = CpuSampler(Path(path))
        signal.signal(signal.SIGPROF, sampler.note)
        signal.signal(signal.SIGUSR2, sampler.toggle)
