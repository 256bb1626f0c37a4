"""Plays small runs with a broken and with a healthy learning signal, and counts the findings of the lint.

    python benchmarks/run_lint.py [NAME ...] [--quick] [--no-history] [--folder FOLDER] [SETTING ...]

Each run of `lint_cases.py` takes two steps in this process (`lint_play.py`). A broken one passes if a finding names it,
a healthy one if there are no findings. Further findings about a broken run are listed: one cause may show in several
ways. NAME is part of a run's name. Results are kept in FOLDER, if it is named, and a run that has one there is not
played again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from history import ROOT, append, parse_arguments, table
from lint_cases import CASES, Case
from lint_play import play

from areal_actors.core.devices import CudaDevices
from areal_actors.recipe.load import load

Figures = dict[str, Any]
SMALL = (
    "profile=embedded",
    "seed=0",
    "steps=2",
    'warm_start.skills=["answer","tools","retry"]',
    "sampling.max_tokens=48",
    "task.held_out=4",
    "task.retries=0",
    "evaluation.tasks=0",
    "checkpoint.every_steps=0",
    "trainer.batch_size=4",
    "algorithm.group_size=4",
    "watchdog.max_failures_in_a_row=24",
)
"""Settings of a run of a few seconds."""


def main() -> int:
    """Play the runs, print a table and append a line to the history.

    The exit status is 1 if a finding is missing or wrong.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words", nargs="*", metavar="NAME or SETTING", help="parts of names of runs; settings of all runs"
    )
    parser.add_argument("--folder", type=Path, help="folder of results and of the embedded model")
    options = parse_arguments(parser, {"words": ["warm_start.steps=300", "warm_start.tail_steps=10"]})
    settings = [word for word in options.words if "=" in word]
    names = [word for word in options.words if "=" not in word]
    cases = [
        case
        for case in CASES
        if (case.quick or not options.quick) and (not names or any(name in case.name for name in names))
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        outcomes = [_show(result(case, number, folder, settings)) for number, case in enumerate(cases)]
    print(table(("run", "expected", "findings", "passed"), [_row(one) for one in outcomes]))
    summary = figures(outcomes)
    print(", ".join(f"{name} {value}" for name, value in summary.items() if not isinstance(value, list)))
    if not options.no_history and len(cases) == len(CASES):
        print(append("run_lint", summary))
    return int(summary["named"] < summary["sick"] or summary["false_alarms"] > 0)


def result(case: Case, number: int, folder: Path, settings: Sequence[str]) -> Figures:
    """Play a run, or read its result."""
    file = folder / f"{case.name.replace(' ', '-').replace('/', '-')}.json"
    if file.exists():
        return dict(json.loads(file.read_text(encoding="utf-8")))
    words = [*SMALL, f"run=lint-{number}", f"folder={folder}", *case.settings, *settings]
    recipe = load([ROOT / "recipes" / f"{case.recipe}.toml"], words, CudaDevices(0, "not asked")).recipe
    started = time.process_time()
    played = play(recipe)
    outcome = {
        "run": case.name,
        "expected": case.expected,
        "found": [fault.name for fault in played.faults],
        "sentences": [fault.sentence for fault in played.faults],
        "steps": played.steps,
        "episodes": len(played.rewards),
        "reward": round(fmean(played.rewards), 4) if played.rewards else None,
        "abandoned": played.abandoned,
        "cpu": round(time.process_time() - started, 1),
    }
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(outcome), encoding="utf-8")
    return outcome


def figures(outcomes: Sequence[Figures]) -> Figures:
    """Figures of all runs for the history."""
    sick = [one for one in outcomes if one["expected"]]
    healthy = [one for one in outcomes if not one["expected"]]
    return {
        "sick": len(sick),
        "named": sum(map(has_passed, sick)),
        "healthy": len(healthy),
        "false_alarms": sum(not has_passed(one) for one in healthy),
        "cpu_seconds": round(sum(one["cpu"] for one in outcomes), 1),
        "runs": [{name: one[name] for name in one if name != "sentences"} for one in outcomes],
    }


def has_passed(outcome: Figures) -> bool:
    """True if a broken run was named, or a healthy one was not."""
    return outcome["expected"] in outcome["found"] if outcome["expected"] else not outcome["found"]


def _row(outcome: Figures) -> tuple[str, ...]:
    return (
        outcome["run"],
        outcome["expected"] or "nothing",
        ", ".join(outcome["found"]),
        "yes" if has_passed(outcome) else "NO",
    )


def _show(outcome: Figures) -> Figures:
    counts = (
        f"{outcome['steps']} steps, {outcome['episodes']} episodes, reward {outcome['reward']}, {outcome['abandoned']}"
        " failed"
    )
    print(f"{outcome['run']}: {', '.join(outcome['found']) or 'nothing'} ({counts}, {outcome['cpu']} s)", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
