"""The process of one tracker: takes a run as JSON lines on standard input, and hands it to the tracker's library.

The first line is a `TrackedRun`; each other one is a point, `{"step", "time", "metrics"}`, or the end of the run,
`{"status", "error"}`. On standard output it answers with one line each: `{"place"}`, `{}`, and at last `{"done"}` or
`{"error"}`; the library's own output goes to standard error. Without an end, the process that sends the lines has died
or stopped following the run.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from areal_actors.core.installed_parts import group_of
from areal_actors.core.trackers import TRACKERS

__all__ = ["TrackedRun", "Tracker", "flat"]

LONGEST_ERROR = 2000
LEFT_ALONE_SECONDS = 30.0
"""Time limit for the library to write what it has, once nothing more can come."""


class TrackedRun(NamedTuple):
    """The run, as trackers know it."""

    id: str
    """Differs between two runs of one name; letters, digits and hyphens."""
    name: str
    folder: str
    """Folder of the run, for trackers with a folder per run."""
    store: str
    """Folder of all runs, for trackers with one database for them."""
    project: str
    """Project or experiment; empty for what the library's variable names, or `areal`."""
    config: dict[str, Any]
    """The resolved recipe, without keys and passwords."""
    started: float
    """Seconds since the epoch."""

    def project_name(self, variable: str) -> str:
        """Returns the project: the one asked for, or the library's own setting, or `areal`."""
        return self.project or os.environ.get(variable, "") or "areal"


class Tracker(Protocol):
    """One run in one tracker, opened when it is created."""

    place: str
    """The run's place in the tracker, for people."""
    sent: dict[str, int]
    """The last step that the tracker has, of each metric."""

    def send(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Hand over the metrics of a step; each has steps in ascending order."""

    def flush(self) -> None:
        """Make what was sent durable."""

    def finish(self, status: str, error: str) -> None:
        """Close the run: `finished`, `ended early` (for this reason), `interrupted`, or empty if it goes on."""


def flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of a recipe by dotted name; a list is one setting."""
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield from flat(entry, f"{before}{name}.")
        else:
            yield f"{before}{name}", entry


def main() -> None:
    """Serve one tracker until the run ends; exits with 1 after an error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_receive, args=(lines,), daemon=True).start()
    try:
        _serve(lines, answers)
    # Whatever a library raises is reported by name, and ends only this process
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:LONGEST_ERROR]}) + "\n")
        sys.stderr.flush()
        os._exit(1)


def _receive(lines: SimpleQueue[str]) -> None:
    """Queue the lines; a library that hangs after the last one ends with this process."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    threading.Event().wait(LEFT_ALONE_SECONDS)
    os._exit(1)


def _open(name: str, run: TrackedRun) -> Tracker:
    """Open the run in one of our trackers, or in the one that a distribution in this interpreter brings.

    That one is a function of the run.
    """
    open_run = _brought(name) if name not in TRACKERS else import_module(f"areal_actors.track.to_{name}").open_run
    tracker: Tracker = open_run(run)
    return tracker


def _brought(name: str) -> Any:
    """The function of the first distribution that brings a tracker of this name."""
    return next(iter(entry_points(group=group_of("tracker"), name=name))).load()


def _serve(lines: SimpleQueue[str], answers: Any) -> None:
    name, run = json.loads(lines.get())
    tracker = _open(name, TrackedRun(**run))
    answers.write(json.dumps({"place": tracker.place}) + "\n")
    while line := lines.get():
        message = json.loads(line)
        if "status" in message:
            tracker.flush()
            tracker.finish(message["status"], message["error"])
            answers.write(json.dumps({"done": True}) + "\n")
            return
        new = {
            metric: value
            for metric, value in message["metrics"].items()
            if message["step"] > tracker.sent.get(metric, -1)
        }
        if new:
            tracker.send(message["step"], message["time"], new)
            tracker.sent.update(dict.fromkeys(new, message["step"]))
        if lines.empty():
            tracker.flush()
        answers.write("{}\n")
    tracker.flush()
    tracker.finish("", "")
