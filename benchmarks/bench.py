"""Runs the benchmarks one after the other: all of them, or those named.

    python benchmarks/bench.py [NAME ...] [--quick]

Each prints its table, and appends one line to `history.jsonl`; `--help` of each describes the measurement. `--quick`
runs each with tiny sizes and writes no history, as a smoke test. A program of this folder that accepts `--quick` is a
benchmark; the other files are helper processes and modules. Those of `archive/` have answered their question, and run
only when they are named.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ARCHIVE = HERE / "archive"
LAST = ("learning", "staleness", "trainer", "race_trl")
"""The first two take hours; the last two need TRL in an environment of its own."""


def benchmarks(folder: Path = HERE) -> list[str]:
    """Names of the benchmarks of a folder: its files that parse arguments."""
    found = [
        path.stem
        for path in sorted(folder.glob("*.py"))
        if path != Path(__file__) and _is_benchmark(path.read_text(encoding="utf-8"))
    ]
    return sorted(found, key=lambda name: (name in LAST, name))


def _is_benchmark(text: str) -> bool:
    return any(
        isinstance(node, ast.Import) and any(name.name == "argparse" for name in node.names)
        for node in ast.parse(text).body
    ) and ('__name__ == "__main__"' in text)


def main() -> None:
    """Run the named benchmarks."""
    known, archived = benchmarks(), benchmarks(ARCHIVE)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(known)} (default: all but {', '.join(LAST)}; with --quick all)",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no history")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in known + archived]:
        parser.error(f"there is no benchmark `{unknown[0]}`; there are {', '.join(known + archived)}")
    for name in options.names or [name for name in known if options.quick or name not in LAST]:
        print(f"\n== {name}", flush=True)
        program = (HERE if name in known else ARCHIVE) / f"{name}.py"
        environment = {**os.environ, **({"PYTHONPATH": str(HERE)} if name in archived else {})}
        ended = subprocess.run(
            [sys.executable, str(program), *["--quick"] * options.quick], cwd=HERE.parent, env=environment, check=False
        )
        if ended.returncode:
            raise SystemExit(f"the benchmark {name} failed with status {ended.returncode}")


if __name__ == "__main__":
    main()
