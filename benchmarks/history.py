"""Common functions of the benchmarks.

Arguments, commands, tables, lines of `history.jsonl`, and the load of other processes.
Each line has an `id`, its benchmark's name and number (`gateway-2`), to which the documentation refers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

HISTORY = Path(__file__).parent / "history.jsonl"
ROOT = Path(__file__).parent.parent


SMALL = (
    "profile=embedded",
    "warm_start.steps=10",
    "warm_start.tail_steps=2",
    "task.held_out=4",
    "evaluation.tasks=4",
    "evaluation.every_steps=0",
    "trainer.batch_size=2",
    "algorithm.group_size=4",
    "staleness_gate.max_concurrent=4",
)
"""Settings of a run of a few seconds, for smoke tests."""
LONGEST_SECONDS = 1800.0
"""Time limit of a command."""
OUTPUT_TAIL_CHARACTERS = 4000
"""Characters of a failed command's output that are shown."""


def parse_arguments(
    parser: argparse.ArgumentParser, quick: Mapping[str, Any], words: Sequence[str] | None = None
) -> argparse.Namespace:
    """Parse the arguments of a benchmark.

    `--quick` uses the values of `quick` as defaults, for a smoke test of seconds.
    """
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no history")
    parser.add_argument("--no-history", action="store_true", help="print only")
    if parser.parse_known_args(words)[0].quick:
        parser.set_defaults(**quick)
    arguments = parser.parse_args(words)
    arguments.no_history = arguments.no_history or arguments.quick
    return arguments


def areal(
    *words: str, allowed: Sequence[int] = (0,), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of the command line in this checkout; `environment` is added to that of this process.

    Raises:
        SystemExit: its exit status is not an allowed one.
        TimeoutExpired: it took longer than `LONGEST_SECONDS`.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "areal_actors", *words],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if ended.returncode not in allowed:
        raise SystemExit(
            f"areal-actors {' '.join(words)} failed:\n{(ended.stdout + ended.stderr)[-OUTPUT_TAIL_CHARACTERS:]}"
        )
    return ended


def append(benchmark: str, figures: Mapping[str, Any], history: Path = HISTORY) -> str:
    """Append figures to the history, with commit and machine; NaN becomes null."""
    before = (
        [json.loads(line)["benchmark"] for line in history.read_text(encoding="utf-8").splitlines()]
        if history.exists()
        else []
    )
    name = f"{benchmark}-{before.count(benchmark) + 1}"
    line = {"id": name, "benchmark": benchmark, "commit": commit(), "machine": machine(), **figures}
    with history.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
    return name


def commit() -> str:
    """The commit of the code, with a `+` if files differ from it; empty outside a repository."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> dict[str, str | int]:
    """Properties of the machine that affect the figures."""
    return {"cores": os.cpu_count() or 0, "architecture": platform.machine(), "python": platform.python_version()}


def busy_seconds() -> float:
    """CPU seconds that this machine spent on all processes, including time stolen by its host."""
    times = psutil.cpu_times()
    return float(
        sum(times)
        - times.idle
        - getattr(times, "iowait", 0.0)
        - getattr(times, "guest", 0.0)
        - getattr(times, "guest_nice", 0.0)
    )


def others_share(busy: float, own: float, seconds: float) -> float:
    """Share of the machine's CPU used by other processes: above a few hundredths, measured seconds are unreliable."""
    return max(busy - own, 0.0) / (seconds * (os.cpu_count() or 1))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format columns with minimal widths, the first left-aligned, the others right-aligned."""
    cells = [[_shown(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _shown(cell: object) -> str:
    return f"{cell:,.2f}" if isinstance(cell, float) else str(cell)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
