"""Measures the CPU time of this machine, and of the run on it."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from areal_actors.scaling.machine_usage import MachineUsage

LOOKED_FOR_EVERY = 5
"""Measurements after which descendants are looked for again."""
IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Times of a core in which it computes nothing, or that another one has, too."""


class MachineMeter:
    """Measures the machine; keeps the CPU time of descendants that have ended."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._processes = [self._own]
        """This process and its descendants, when they were last looked for."""
        self._measured = 0
        self._seconds: dict[tuple[int, float], float] = {}
        self._ended = 0.0

    def measure(self) -> MachineUsage | None:
        """Returns the CPU time so far; None where the system does not report it."""
        try:
            allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
            times = psutil.cpu_times(percpu=True)
            used = [times[core] for core in allowed if core < len(times)] if allowed is not None else times
            machine = sum(sum(value for name, value in core._asdict().items() if name not in IDLE) for core in used)
            return MachineUsage(len(used), machine, self._measure_run())
        except (psutil.Error, OSError):
            return None

    def _measure_run(self) -> float:
        if self._measured % LOOKED_FOR_EVERY == 0:  # a walk through all processes of the machine
            self._processes = [self._own, *self._own.children(recursive=True)]
        self._measured += 1
        seconds: dict[tuple[int, float], float] = {}
        for process in self._processes:
            with suppress(psutil.Error):
                spent = process.cpu_times()
                seconds[process.pid, process.create_time()] = spent.user + spent.system
        self._ended += sum(spent for key, spent in self._seconds.items() if key not in seconds)
        self._seconds = seconds
        return self._ended + sum(seconds.values())
