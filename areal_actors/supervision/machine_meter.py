"""Measures the CPU time of this machine, and of the run on it."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from areal_actors.scaling.machine_usage import MachineUsage

IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Times of a core in which it computes nothing, or that another one has, too."""


class MachineMeter:
    """Measures the machine, and this process with its descendants, those that have ended included."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._last = self._lost = 0.0

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
        """Returns the CPU time of the run: that of an ended process is with the parent that has waited for it."""
        seconds = 0.0
        for process in [self._own, *self._own.children(recursive=True)]:  # a walk through all processes of the machine
            with suppress(psutil.Error):
                spent = process.cpu_times()
                seconds += spent.user + spent.system + spent.children_user + spent.children_system
        self._lost += max(self._last - seconds, 0.0)  # of one that ended without a parent that waits
        self._last = seconds
        return self._lost + seconds
