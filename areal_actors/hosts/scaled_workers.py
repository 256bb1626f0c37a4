"""Workers that `[autoscale]` adds on this machine: each decision of the run starts `areal join` commands, or ends the newest of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final

import msgspec

from areal_actors.core.values import Value
from areal_actors.hosts.local_command import LocalCommand
from areal_actors.hosts.plan import PROGRAM, LaunchPlan

SUBJECT: Final = "scale.decided"
RETRY_SECONDS: Final = 2.0
"""Time between two attempts to watch a run that has not started yet."""


class ScaleChange(Value):
    """`ScaleDecided`, as the monitor prints it."""

    role: str
    before: int
    workers: int


class _Line(Value):
    id: str
    message: ScaleChange


_lines = msgspec.json.Decoder(_Line)


class ScaledWorkers:
    """Follows the decisions of a run until it ends. Workers of `[actors]` and `[hosts]` are not its own, and stay."""

    def __init__(
        self, plan: LaunchPlan, address: str, gpus: Sequence[int], start: Callable[[LocalCommand], subprocess.Popen[bytes]]
    ) -> None:
        """`gpus` are those of this machine that no other process has; `start` starts a command."""
        self._recipe, self._address, self._free, self._start = plan.recipe, address, list(gpus), start
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        """Processes by name, in the order of their starts."""
        self._commands: dict[str, LocalCommand] = {}
        self._numbers = count()
        self._monitor: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._followed: set[str] = set()
        """Ids of decisions: another monitor begins at the start of the log."""

    def follow(self) -> None:
        """Start and end workers until `stop`; blocks."""
        while not self._stopped.is_set():
            for line in self._monitored():
                if line.id not in self._followed:
                    self._followed.add(line.id)
                    self.apply(line.message)
            self._stopped.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """Follow no more decisions."""
        self._stopped.set()
        if self._monitor is not None:
            self._monitor.terminate()

    def apply(self, decision: ScaleChange) -> None:
        """Start as many workers as are missing, or have the newest leave: each finishes its work first."""
        more = decision.workers - decision.before
        for _ in range(more):
            if (command := self._command(decision.role)) is None:
                sys.stderr.write(f"autoscale: no GPU is free for another {decision.role}\n")
                return
            self._commands[command.name] = command
            self.workers[command.name] = self._start(command)
        own = [name for name, command in self._commands.items() if command.role == decision.role and self.workers[name].poll() is None]
        for name in own[more:] if more < 0 else ():
            self._free += self._commands.pop(name).gpus
            self.workers[name].terminate()

    def _command(self, role: str) -> LocalCommand | None:
        """Returns the command of another worker; None if too few GPUs are free."""
        hosts = self._recipe.hosts
        needed = hosts.joined()[role].gpus if role in hosts.joined() else 0
        if needed > len(self._free):
            return None
        gpus, self._free = tuple(self._free[:needed]), self._free[needed:]
        words = ("join", self._address, "--role", role, "--wait", f"{hosts.wait_seconds:g}")
        return LocalCommand(name=f"{role}-added-{next(self._numbers)}", role=role, words=words, gpus=gpus)

    def _monitored(self) -> Iterator[_Line]:
        """Yield decisions until the run, or the monitor, ends."""
        words = ("monitor", self._recipe.run, SUBJECT, "--json", "--folder", str(self._recipe.folder))
        with subprocess.Popen((*PROGRAM, *words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as monitor:
            self._monitor = monitor
            if self._stopped.is_set():
                monitor.terminate()
            assert monitor.stdout is not None
            for line in monitor.stdout:
                yield _lines.decode(line)
