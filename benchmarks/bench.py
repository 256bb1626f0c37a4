"""Runs the benchmarks one after the other: all of them, or those named.

    python benchmarks/bench.py [NAME ...] [--quick]

Each prints its table, and most append one line to `history.jsonl`; `--help` of each says what it measures. `--quick` measures
less of everything and keeps nothing: a few minutes instead of half an hour. `trainer` is the last, for it needs TRL in an
environment of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from history import ROOT, append

QUICK = {
    "engine": ("--repeats", "1"),
    "orchestration": ("--repeats", "1", "--steps", "10", "--no-history"),
    "gateway": ("--quick", "--no-history"),
    "async_vs_sync": ("--seeds", "0", "--steps", "12", "--no-history"),
    "determinism": (
        "--recipes",
        "gsm8k_grpo",
        "--steps",
        "2",
        "--loops",
        "1",
        "--no-history",
        "warm_start.steps=40",
        "evaluation.tasks=10",
    ),
    "rewards": ("--seconds", "0.3"),
    "trainer_sharing": ("--quick", "--repeats", "1", "--no-history"),
    "trainer": ("embedded", "--steps", "2", "--no-history"),
}
"""Every benchmark, and its arguments when little is to be measured."""


def run(name: str, *, quick: bool) -> None:
    """Run one benchmark; one that fails ends all."""
    arguments = QUICK[name] if quick else ()
    print(f"\n== {name}", flush=True)
    if name != "engine":
        _script(name, arguments)
        return
    with tempfile.TemporaryDirectory() as temporary:
        figures = Path(temporary) / "figures.json"
        _script(name, (*arguments, "--json", str(figures)))
        if not quick:
            append(name, json.loads(figures.read_text(encoding="utf-8")))


def _script(name: str, arguments: Sequence[str]) -> None:
    ended = subprocess.run([sys.executable, str(Path(__file__).with_name(f"{name}.py")), *arguments], cwd=ROOT, check=False)
    if ended.returncode:
        raise SystemExit(f"the benchmark {name} failed with status {ended.returncode}")


def main() -> None:
    """Run what is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(QUICK)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="measure less and keep nothing")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in QUICK]:
        parser.error(f"there is no benchmark `{unknown[0]}`; there are {', '.join(QUICK)}")
    for name in options.names or QUICK:
        run(name, quick=options.quick)


if __name__ == "__main__":
    main()
