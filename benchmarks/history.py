"""What the benchmarks share: a small table, one line of figures in `history.jsonl`, and whether the machine was quiet."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

HISTORY = Path(__file__).parent / "history.jsonl"
ROOT = Path(__file__).parent.parent


def append(benchmark: str, figures: Mapping[str, Any], history: Path = HISTORY) -> None:
    """Keep a benchmark's figures, with the commit and the machine that they were measured on; what is not a number is null."""
    line = {"benchmark": benchmark, "commit": commit(), "machine": machine(), **figures}
    with history.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def commit() -> str:
    """The commit of the code, with a `+` where the files differ from it; empty outside of a repository."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> dict[str, str | int]:
    """What the figures depend on besides the code."""
    return {"cores": os.cpu_count() or 0, "architecture": platform.machine(), "python": platform.python_version()}


def busy_seconds() -> float:
    """CPU seconds that this machine has spent on anybody's work, or was kept from spending by its host."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def others_share(busy: float, own: float, seconds: float) -> float:
    """Share of the machine's CPU that went to others than the measured: beyond a few hundredths, do not trust the seconds."""
    return max(busy - own, 0.0) / (seconds * (os.cpu_count() or 1))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they must be, the first to the left and all others to the right."""
    cells = [[_shown(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _shown(cell: object) -> str:
    return f"{cell:,.2f}" if isinstance(cell, float) else str(cell)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
