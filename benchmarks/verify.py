"""Forgeries that `areal-actors audit --verify` finds, and its cost as a share of the run's.

    python benchmarks/verify.py [--forgeries 50] [--steps 40] [--drawn 10] [--seed 0] [SETTING ...]

A run of recipes/gsm8k_grpo.toml keeps a checkpoint of every step. Copies of it are forged in four ways, `--forgeries`
of each, half by a careless forger and half by a careful one (`forged_run.py`): rewards exchanged in three of ten of the
groups, episodes dropped in three of ten of the steps, other weights, another recipe. Each is verified with `--drawn`
steps. Copies that are not forged must pass, a tenth as many.

CPU seconds are those of the processes: of the run as it reports them, of `verify` with its child.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path
from random import Random

from forged_run import FORGERIES, ForgedRun
from history import SMALL, append, areal, parse_arguments, table

from areal_actors.replay.verify import FORGED, SOUND

RECIPE = "recipes/gsm8k_grpo.toml"
KEPT = ("evaluation.every_steps=0", "evaluation.tasks=0", "checkpoint.every_steps=1", "checkpoint.keep_last=1000")
QUICK = {"forgeries": 2, "steps": 2, "drawn": 2, "settings": list(SMALL)}


def record(folder: Path, options: argparse.Namespace) -> tuple[Path, Path]:
    """Run the recipe; returns the folder of the run and its exported log."""
    fixed = ["profile=embedded", "run=recorded", f"folder={folder}", f"steps={options.steps}", "algorithm.group_size=4"]
    areal("run", RECIPE, *fixed, "trainer.batch_size=8", *options.settings, *KEPT)
    areal("export", str(folder / "recorded"), str(folder / "log"))
    return folder / "recorded", folder / "log"


def verify(run: ForgedRun, drawn: int, seed: int) -> tuple[bool, str, float]:
    """Verify a copy; returns whether a forgery was found, the first difference, and CPU seconds."""
    before = _children_seconds()
    words = (
        "audit",
        "--verify",
        str(run.checkpoint),
        "--log",
        str(run.log),
        "--steps",
        str(drawn),
        "--seed",
        str(seed),
        "--json",
    )
    ended = areal(*words, allowed=(SOUND, FORGED))
    differences = json.loads(ended.stdout)["forged"]
    return bool(differences), differences[0] if differences else "", _children_seconds() - before


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(run: Path, log: Path, options: argparse.Namespace, scratch: Path) -> list[list[object]]:
    """Forge and verify; returns a row for each kind of forgery and forger, and one for copies without any."""
    rows: list[list[object]] = []
    cases = [(name, careful) for name in FORGERIES for careful in (False, True)]
    for name, careful in [*cases, ("none", False)]:
        count = options.forgeries // 2 if name != "none" else max(1, options.forgeries // 10)
        found, seconds, began = 0, 0.0, time.monotonic()
        for number in range(count):
            forged = ForgedRun(run, log, options.steps, scratch / "forged")
            if name != "none":
                random = Random(f"{options.seed} {name} {careful} {number}")
                FORGERIES[name](forged, random, careful=careful)
            forged.write(careful=careful)
            was_found, difference, cost = verify(forged, options.drawn, options.seed + number)
            found, seconds = found + was_found, seconds + cost
            shutil.rmtree(forged.place)
            if was_found != (name != "none") or not number:
                print(
                    f"  {name}, {'careful' if careful else 'careless'}, {number}: {difference[:160] or 'nothing'}",
                    flush=True,
                )
        forger = "" if name == "none" else "careful" if careful else "careless"
        rows.append([name, forger, f"{found} of {count}", seconds / max(count, 1), time.monotonic() - began])
    return rows


def run_seconds(run: Path) -> float:
    """CPU seconds of the processes of a run."""
    usage = json.loads((run / "usage.json").read_bytes())
    return float(sum(process["cpu_seconds"] for process in usage.values()))


def main() -> None:
    """Record, forge, verify and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("forgeries", 50), ("steps", 40), ("drawn", 10), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--recorded", type=Path, nargs=2, metavar=("RUN", "LOG"), help="in place of a new run")
    parser.add_argument("settings", nargs="*", default=[])
    options = parse_arguments(parser, QUICK)
    with tempfile.TemporaryDirectory(prefix="areal-verify-") as temporary:
        run, log = options.recorded or record(Path(temporary), options)
        rows, cost = measure(run, log, options, Path(temporary)), run_seconds(run)
    print(table(["forgery", "forger", "found", "CPU seconds", "seconds of all"], rows))
    print(f"the run took {cost:.1f} s of CPU time")
    if not options.no_history:
        kinds = [{"forgery": row[0], "forger": row[1], "found": row[2], "cpu_seconds": row[3]} for row in rows]
        sizes = {name: getattr(options, name) for name in ("forgeries", "steps", "drawn", "seed")}
        append("verify", {**sizes, "run_cpu_seconds": cost, "kinds": kinds})


if __name__ == "__main__":
    main()
