"""Reads the decisions of a run on its numbers of workers, with `areal-actors view`."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Final, Self

import msgspec

from areal_actors.core.values import Value
from areal_actors.hosts.launchers.plan import PROGRAM

SUBJECT: Final = "scale.decided"
RETRY_SECONDS: Final = 2.0
"""Time between two attempts to watch a run that has not started yet."""


class ScaleChange(Value):
    """`ScaleDecided`, as the monitor prints it."""

    role: str
    before: int
    workers: int
    time: float = 0.0
    """Time of the decision, in seconds since the epoch."""


class _Line(Value):
    id: str
    time: float
    message: ScaleChange


_lines = msgspec.json.Decoder(_Line)


class DecisionReader:
    """Reads while it is entered, in a thread of its own."""

    def __init__(self, run: str, folder: Path) -> None:
        """`folder`: the run's folder, which may be on another host or in another container.

        Only its address is read.
        """
        self.decisions: SimpleQueue[ScaleChange] = SimpleQueue()
        """Decisions that were not taken yet."""
        self._address = folder / "monitor.json"
        self._command = (*PROGRAM, "view", run, SUBJECT, "--json", "--bus", str(self._address))
        self._monitor: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="decisions", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._monitor is not None:
            self._monitor.terminate()
        self._thread.join(RETRY_SECONDS)

    def _read(self) -> None:
        seen: set[str] = set()  # every monitor begins at the start of the log
        while not self._stopped.is_set():
            if not self._address.exists():  # the run has not started yet, which may take minutes
                self._stopped.wait(RETRY_SECONDS)
                continue
            with subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
            ) as monitor:
                self._monitor = monitor
                if self._stopped.is_set():
                    monitor.terminate()
                assert monitor.stdout is not None
                for text in monitor.stdout:
                    line = _lines.decode(text)
                    if line.id not in seen:
                        seen.add(line.id)
                        self.decisions.put(msgspec.structs.replace(line.message, time=line.time))
            self._stopped.wait(RETRY_SECONDS)
