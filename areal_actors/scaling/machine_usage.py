"""CPU time of the machine of the supervisor, and of the run's part of it."""

from __future__ import annotations

from typing import NamedTuple


class CoresInUse(NamedTuple):
    """As in `LoadMeasured`."""

    run_cpu: float = 0.0
    machine_cpu: float = 0.0
    cores: int = 0


class MachineUsage(NamedTuple):
    """CPU seconds so far."""

    cores: int
    """Cores that this process may use."""
    machine: float
    """CPU seconds of all programs on these cores."""
    run: float
    """CPU seconds of this process and its descendants."""

    def since(self, before: MachineUsage, seconds: float) -> CoresInUse:
        """Returns the cores in use since an earlier measurement, this many seconds ago."""
        return CoresInUse(
            run_cpu=round(max(self.run - before.run, 0.0) / seconds, 3),
            machine_cpu=round(min(max(self.machine - before.machine, 0.0) / seconds, self.cores), 3),
            cores=self.cores,
        )
