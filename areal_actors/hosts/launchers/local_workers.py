"""Workers that `[autoscale]` adds on this machine.

Each is an `areal-actors join` with GPUs that no living process has.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

import psutil

from areal_actors.hosts.launchers.local_command import LocalCommand
from areal_actors.hosts.launchers.plan import LaunchPlan
from areal_actors.hosts.launchers.scaled_hosts import NoRoom

HOLDER: Final = "AREAL_LAUNCHED_AS"
"""Environment variable of a started command and of all processes below it: who holds its GPUs."""


class LocalWorkers:
    """The processes of added workers, and the GPUs of this machine."""

    def __init__(
        self,
        plan: LaunchPlan,
        address: str,
        gpus: Sequence[int],
        start: Callable[[LocalCommand], subprocess.Popen[bytes]],
    ) -> None:
        """`gpus` are those of this machine that no other process has; `start` starts a command."""
        self._places = {place.name: place for place in plan.added}
        self._address, self._free, self._start = address, list(gpus), start
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """Processes by name, in the order of their starts."""
        self._held: dict[str, tuple[int, ...]] = {}
        """GPUs of workers that may live."""
        self._numbers = count()

    def start(self, role: str) -> str:
        """Start an `areal-actors join`.

        Raises:
            NoRoom: too few GPUs are free.
        """
        place = self._places[role]
        if place.gpus > len(self._free):
            self._take_back()
        if place.gpus > len(self._free):
            raise NoRoom(f"it needs {place.gpus} GPUs, and {len(self._free)} are free")
        gpus, self._free = tuple(self._free[: place.gpus]), self._free[place.gpus :]
        name = f"{role}-added-{next(self._numbers)}"
        if gpus:
            self._held[name] = gpus
        self.processes[name] = self._start(
            LocalCommand(name=name, role=role, words=("join", self._address, *place.words), gpus=gpus)
        )
        return name

    def leave(self, name: str) -> None:
        """Send SIGTERM."""
        self.processes[name].terminate()

    def ended_of(self, names: Sequence[str]) -> set[str]:
        """Returns those whose process has ended."""
        return {name for name in names if self.processes[name].poll() is not None}

    def killed(self, names: Sequence[str]) -> set[str]:
        """Returns those whose process a signal has ended."""
        return {name for name in names if (self.processes[name].poll() or 0) < 0}

    def _take_back(self) -> None:
        """Free the GPUs of workers that have ended with all of their processes.

        An engine may outlive a killed `areal-actors join`.
        """
        over = self.ended_of([*self._held])
        if over:
            living = _holders()
            for name in over - living:
                self._free += self._held.pop(name)


def holder(command: LocalCommand) -> Mapping[str, str]:
    """Returns the variable that marks the processes of a command of this launch."""
    return {HOLDER: f"{os.getpid()} {command.name}"}


def _holders() -> set[str]:
    """Returns the names of the commands of this launch that have a living process."""
    holders = set()
    for process in psutil.process_iter(["environ", "status"]):
        launch, _, name = (process.info["environ"] or {}).get(HOLDER, "").partition(" ")
        if launch == str(os.getpid()) and process.info["status"] != psutil.STATUS_ZOMBIE:
            holders.add(name)
    return holders
