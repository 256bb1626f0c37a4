"""Counts the structure of the product: `python scripts/structure_figures.py [--since COMMIT] [--path]`.

- Files that a feature changes: of the commits that add a file of the product, how many files of it each changed
  besides.
- Settings: those that the main recipe resolves to in an install without extras, and all.
- Lines of the product, and of the base, which needs no torch.
- With `--path`, which traces a run: the files that one sample meets, their lines, and how often the path goes from one
  file to another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "scripts")]

import path as traced  # noqa: E402 - of this folder
from support.regions import (  # noqa: E402
    ELSEWHERE,
    TOPS,
    base_environment,
    is_base,
    is_one_of,
    module_of,
)

from areal_actors.recipe.reference import settings  # noqa: E402

RECIPE = "recipes/gsm8k_grpo.toml"
FEATURES = 50
"""Commits that are counted before `--since`."""
STEP = "Trainer BatchFormed"
"""Hop of the path that is a step of the trainer."""


def feature_changes(commits: str) -> list[int]:
    """Returns the number of product files that each commit modified, newest first.

    Only commits of the range that add files of the product count.
    """
    log = [
        "git",
        "log",
        "--no-merges",
        "--find-renames",
        "--diff-filter=AM",
        "--name-status",
        "--format=tformat:commit",
        commits,
        "--",
        "bus",
        "areal_actors",
    ]
    printed = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    changes = [
        [line[0] for line in commit.splitlines() if line.endswith(".py")] for commit in printed.split("commit\n")
    ]
    return [kinds.count("M") for kinds in changes if "A" in kinds]


def describe_changes(counts: Sequence[int]) -> str:
    """Median and nine tenths of the numbers of files."""
    if not counts:
        return "no commit adds files"
    highest = sorted(counts)[min(len(counts) * 9 // 10, len(counts) - 1)]
    return f"median {statistics.median(counts):g}, p90 {highest}, of {len(counts)} commits"


def resolved_settings() -> int:
    """Number of settings of the main recipe as `check` prints them in an install without extras."""
    command = [sys.executable, "-m", "areal_actors", "check", RECIPE, "--json"]
    printed = subprocess.run(
        command, cwd=ROOT, env=base_environment(), capture_output=True, text=True, check=True
    ).stdout
    return sum(1 for _ in _leaves(json.loads(printed)["recipe"]))


def _leaves(table: Any) -> Iterator[Any]:
    if isinstance(table, dict) and table:
        for value in table.values():
            yield from _leaves(value)
    else:
        yield table


def count_lines(files: Sequence[Path]) -> int:
    """Number of lines of these files."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def path_figures(hops: Sequence[Sequence[traced.Function]]) -> str:
    """Files of these functions, lines of these files, and switches between them.

    The order is that in which a sample met the functions.
    """
    order = [function.file for functions in hops for function in functions]
    switches = sum(before != after for before, after in pairwise(order))
    files = sorted(set(order))
    return f"{len(files)} files, {count_lines([ROOT / file for file in files]):,} lines, {switches} switches"


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--since",
        default="",
        metavar="COMMIT",
        help=f"compare the {FEATURES} features before this commit with those after",
    )
    parser.add_argument("--path", action="store_true", help="also trace a run (a minute)")
    options = parser.parse_args()
    before = feature_changes(options.since or "HEAD")[:FEATURES]
    print(f"product files that a feature changes{' before' * bool(options.since)}: {describe_changes(before)}")
    if options.since:
        print(
            f"product files that a feature changes after: {describe_changes(feature_changes(f'{options.since}..HEAD'))}"
        )
    shown = sum(max(len(each.algorithms), 1) for each in settings())
    print(f"settings: {resolved_settings()} of the main recipe in a base install, {shown} of all algorithms")
    product = [file for top in TOPS for file in (ROOT / top).rglob("*.py")]
    base = [file for file in product if is_base(module_of(file))]
    elsewhere = [file for file in product if is_one_of(module_of(file), ELSEWHERE)]
    print(
        f"lines: {count_lines(product):,} of the product, {count_lines(base):,} without torch,"
        f" {count_lines(elsewhere):,} for others"
    )
    if options.path:
        hops = traced.trace()
        print(f"path of one sample: {path_figures(list(hops.values()))}; its step: {path_figures([hops[STEP]])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
