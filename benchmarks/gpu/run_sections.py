"""Runs sections one after the other, each in a process of its own with a limit in seconds, and collects their events.

A section that raises, crashes or hangs does not affect the others: a process that is stopped also releases its device
memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from options import ROOT, Options

LEAST_SECONDS = 5.0
"""A section with less time is skipped."""
STOP_SECONDS = 5.0
"""Wait between SIGTERM and SIGKILL."""
LAST_LINES = 60
"""Lines of a failed process's output that are reported."""
SECTION = Path(__file__).with_name("section.py")


@dataclass(frozen=True)
class Section:
    """The module `section_NAME` and its share of the time, in seconds."""

    name: str
    seconds: float


@dataclass
class Outcome:
    """Events of one section."""

    name: str
    status: str = "ok"
    """`ok`, `failed` or `skipped`."""
    budget_seconds: float = 0.0
    seconds: float = 0.0
    peak_bytes: dict[str, int] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    """Figures, with the name of their case."""
    skipped: list[dict[str, str]] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)

    def receive(self, event: dict[str, Any]) -> None:
        """Add an event of the section's process."""
        match event.pop("event"):
            case "figures":
                self.cases.append({"case": event["case"], **event["figures"]})
            case "skipped":
                self.skipped.append(event)
            case "error":
                self.errors.append(event)
            case "memory":
                self.peak_bytes = event["bytes"]


Progress = Callable[[Outcome, str], None]
"""Called with the outcome so far and what was added to it: `started`, `figures`, `skipped`, `error`, `memory` or
`ended`."""


def run_sections(sections: Sequence[Section], options: Options, seconds: float, progress: Progress) -> list[Outcome]:
    """Run all sections within a total time.

    A section may use its share and what the sections before it left over.
    """
    began, total = time.time(), sum(section.seconds for section in sections)
    outcomes, planned = [], 0.0
    for section in sections:
        planned += section.seconds / total * seconds
        deadline = began + planned
        outcome = Outcome(section.name, budget_seconds=round(max(deadline - time.time(), 0.0), 1))
        outcomes.append(outcome)
        progress(outcome, "started")
        if outcome.budget_seconds < LEAST_SECONDS:
            outcome.status = "skipped"
            outcome.skipped.append(
                {"case": section.name, "reason": f"{outcome.budget_seconds:.0f} s left of {seconds:.0f} s"}
            )
            progress(outcome, "skipped")
        else:
            run_section(outcome, dataclasses.replace(options, deadline=deadline), progress)
        progress(outcome, "ended")
    return outcomes


def run_section(outcome: Outcome, options: Options, progress: Progress) -> None:
    """Run one section until its process ends or the deadline has passed."""
    log = Path(options.folder) / f"{outcome.name}.log"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(SECTION), outcome.name, options.encode()],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    reader = threading.Thread(target=_receive, args=(process, outcome, progress), daemon=True)
    reader.start()
    stopped = False
    try:
        process.wait(max(options.deadline - time.time(), 0.0))
    except subprocess.TimeoutExpired:
        stopped = True
    finally:
        _end(process)
        reader.join(STOP_SECONDS)
    outcome.seconds = round(time.monotonic() - began, 2)
    _conclude(outcome, process.returncode, log, stopped=stopped, progress=progress)


def _receive(process: subprocess.Popen[bytes], outcome: Outcome, progress: Progress) -> None:
    """Add the events of a process, in a thread."""
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            event = json.loads(line)
            what = event["event"]
            outcome.receive(event)
            progress(outcome, what)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def _conclude(outcome: Outcome, code: int, log: Path, *, stopped: bool, progress: Progress) -> None:
    """Set the status of a section whose process has ended."""
    lines = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:])
    if stopped and (outcome.cases or outcome.errors):
        reason = f"stopped at the limit of {outcome.budget_seconds:.0f} s"
        outcome.skipped.append({"case": "the rest", "reason": reason, "output": lines})
        progress(outcome, "skipped")
    elif stopped or code:
        what = (
            f"no figures within {outcome.budget_seconds:.0f} s" if stopped else f"the process ended with status {code}"
        )
        outcome.errors.append({"case": outcome.name, "error": what, "traceback": lines})
        progress(outcome, "error")
    if outcome.errors:
        outcome.status = "failed"
    elif outcome.skipped and not outcome.cases:
        outcome.status = "skipped"
