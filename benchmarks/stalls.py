"""Injects stalls and invalid inputs into small live runs, and prints the report of each and its delay in seconds.

    python benchmarks/stalls.py [NAME ...] [--quick] [--jobs 2] [--scale 1] [--folder runs/stalls]

A case passes if its cause was reported in the expected words, no other cause was reported, the run ended by itself with
the expected exit status, without a traceback, and no process was left. NAME is part of a case's name. `--scale`
multiplies all deadlines.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from history import append
from stall_cases import CASES, Case
from stall_run import StallRun

LIMIT_SECONDS = 180.0
"""Time limit of a case, times the scale."""
LONGEST_TEXT = 160


@dataclass(frozen=True)
class Outcome:
    """Result of a case."""

    case: Case
    report: str
    """The first report of the cause; empty if there was none."""
    seconds: float
    """From the fault to that report."""
    total: float
    """From the fault to the end of the run."""
    problems: tuple[str, ...]

    def row(self) -> list[str]:
        """A row of the table."""
        report = self.report.replace("|", "/")
        short = report if len(report) <= LONGEST_TEXT else f"{report[:LONGEST_TEXT]}…"
        verdict = "passed" if not self.problems else f"FAILED: {'; '.join(self.problems)}"
        return [self.case.name, f"{self.seconds:.1f}" if self.report else "", f"{self.total:.1f}", short, verdict]


def run(case: Case, folder: Path, scale: float = 1.0) -> Outcome:
    """Inject one fault and collect what was reported."""
    stall_run = StallRun(
        folder / re.sub(r"[^a-z0-9]+", "-", case.name.lower()),
        case.settings,
        patch=case.patch,
        after=case.after,
        scale=scale,
    )
    injection_errors = []
    try:
        try:
            if case.inject:
                case.inject(stall_run)
        except (psutil.Error, OSError, LookupError, ValueError) as error:
            injection_errors = [f"could not be injected: {error!r}"]
        status = stall_run.wait(LIMIT_SECONDS * scale)
        ended = time.time()
        left = stall_run.processes_left()
    finally:
        stall_run.wait(0)
    for process in stall_run.processes_left():
        process.kill()
    reports, fault = stall_run.reports(), stall_run.fault_at()
    found = [(at, text) for at, text in reports if re.search(case.words, text)]
    problems = [
        *injection_errors,
        *(["the cause was not reported"] if not found else []),
        *(
            ["did not end"]
            if status is None
            else [f"exit status {status}, not {case.ends}"]
            if status != case.ends
            else []
        ),
        *(f"also reported: {text[:80]}" for _, text in reports for other in case.others if re.search(other, text)),
        *(["traceback"] if "Traceback" in stall_run.text() else []),
        *([f"{len(left)} processes left"] if left else []),
    ]
    at, report = min(found) if found else (0.0, "")
    return Outcome(case, report, max(at - fault, 0.0), max(ended - fault, 0.0), tuple(problems))


def table(outcomes: Iterator[Outcome]) -> Iterator[str]:
    """Lines of a table in Markdown."""
    yield "| fault | reported after s | ended after s | report | |"
    yield "|---|---|---|---|---|"
    for outcome in outcomes:
        yield f"| {' | '.join(outcome.row())} |"


def main() -> int:
    """Run the named cases, all by default; the exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of cases")
    parser.add_argument("--quick", action="store_true", help="a few cases")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies deadlines")
    parser.add_argument("--folder", type=Path, default=Path("runs/stalls") / str(os.getpid()))
    options = parser.parse_args()
    wanted = [case for case in CASES if not options.names or any(name in case.name for name in options.names)]
    wanted = [case for case in wanted if case.quick or not options.quick]
    began, failed = time.monotonic(), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes: list[Outcome] = []
        for line in table(recorded(pool.map(lambda case: run(case, options.folder, options.scale), wanted), outcomes)):
            failed += "FAILED" in line
            print(line, flush=True)
    print(f"\n{len(wanted)} cases, {failed} failed, {time.monotonic() - began:.0f} s")
    if len(wanted) == len(CASES) and options.scale == 1:
        append("stalls", figures(outcomes))
    return int(failed > 0)


def recorded(outcomes: Iterable[Outcome], kept: list[Outcome]) -> Iterator[Outcome]:
    """Yield outcomes and append them to `kept`."""
    for outcome in outcomes:
        kept.append(outcome)
        yield outcome


def figures(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Figures of all cases for the history: number, and seconds until each report."""
    reported = {
        outcome.case.name: round(outcome.seconds, 1) for outcome in outcomes if outcome.report and outcome.seconds > 0
    }
    failed = [outcome.case.name for outcome in outcomes if outcome.problems]
    return {
        "cases": len(outcomes),
        "failed": failed,
        "seconds_p50": median(reported.values()),
        "reported_after_seconds": reported,
    }


if __name__ == "__main__":
    sys.exit(main())
