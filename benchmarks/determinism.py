"""Reproducibility: the episodes and versions of two synchronous runs with one seed that are bitwise identical.

    python benchmarks/determinism.py [--recipes gsm8k_grpo multi_turn] [--steps 20] [--seed 0] [--loops 3] [SETTING ...]

Each recipe is run three times, idle and under load, with `staleness_gate.max_staleness = 0`: twice alone, and once
beside busy loops on every core. The logs of the second and third are compared with that of the first: every exported
trajectory (token ids, log-probabilities, versions, rewards), the rows of every step, the checksum of every version of
the weights, every evaluation. Ends with status 1 unless all are the same. Further settings apply to all three;
`staleness_gate.max_staleness=2` shows the effect of timing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from history import LONGEST_SECONDS, SMALL, append, areal, parse_arguments, table

from areal_actors.messages import EvaluationCompleted, StepCompleted, TrajectoryExported, WeightsPublished
from areal_bus.message import Message
from areal_bus.recorded import read_log

BUSY_LOOP = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end:\n    pass"
COMPARED = {kind.subject: kind for kind in (EvaluationCompleted, StepCompleted, TrajectoryExported, WeightsPublished)}
QUICK = {"recipes": ["gsm8k_grpo"], "steps": 1, "loops": 0, "settings": list(SMALL)}
HEADER = (
    "recipe",
    "second run",
    "episodes",
    "same",
    "steps",
    "same",
    "versions",
    "same",
    "evaluations",
    "same",
    "seconds",
)


@dataclass(frozen=True)
class Outcome:
    """Results of a run, by keys that are equal in both runs."""

    episodes: dict[object, object] = field(default_factory=dict)
    """Trajectories, with all their columns."""
    steps: dict[object, object] = field(default_factory=dict)
    """Checksums of the rows that were trained."""
    versions: dict[object, object] = field(default_factory=dict)
    """Checksums of the weights."""
    evaluations: dict[object, object] = field(default_factory=dict)
    seconds: float = 0.0


def outcome(events: Iterator[Message], seconds: float = 0.0) -> Outcome:
    """Collect the results from the events of a run's log."""
    found = Outcome(seconds=seconds)
    for event in events:
        match event:
            case TrajectoryExported(trajectory=trajectory):
                found.episodes[trajectory.episode] = trajectory
            case StepCompleted():
                found.steps[event.step] = event.sequences_checksum
            case WeightsPublished():
                found.versions[event.weight_version] = event.location.checksum
            case EvaluationCompleted():
                found.evaluations[event.weight_version, event.mode] = event
    return found


def same(one: Mapping[object, object], other: Mapping[object, object]) -> tuple[int, int]:
    """Number of parts in either run, and number of equal ones."""
    return len(one.keys() | other.keys()), sum(name in other and other[name] == part for name, part in one.items())


@contextmanager
def busy_loops(loops: int, seconds: float = LONGEST_SECONDS) -> Iterator[None]:
    """Run processes that only use CPU; they end with this context, and after `seconds`."""
    command = [sys.executable, "-c", BUSY_LOOP.format(seconds=seconds)]
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(recipe: str, words: Sequence[str]) -> Outcome:
    """Run the command line once and collect the results from its log."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, began = Path(temporary), time.perf_counter()
        laid_over = ["profile=embedded", "run=again", f"folder={folder}", "staleness_gate.max_staleness=0", *words]
        areal("run", f"recipes/{recipe}.toml", *laid_over)
        seconds = time.perf_counter() - began
        areal("export", "again", str(folder / "log"), "--folder", str(folder))
        events = (
            envelope.open(COMPARED[envelope.subject])
            for envelope in read_log(folder / "log")
            if envelope.subject in COMPARED
        )
        return outcome(events, seconds)


def row(recipe: str, name: str, first: Outcome, second: Outcome) -> list[object]:
    """Return a line of the table."""
    parts = [
        getattr(outcome, part)
        for part in ("episodes", "steps", "versions", "evaluations")
        for outcome in (first, second)
    ]
    counts = [count for one, other in zip(parts[::2], parts[1::2], strict=True) for count in same(one, other)]
    return [recipe, name, *counts, second.seconds]


def measure(recipe: str, words: Sequence[str], loops: int) -> list[list[object]]:
    """Three runs of a recipe."""
    first, second = run(recipe, words), run(recipe, words)
    alone = row(recipe, "alone", first, second)
    if not loops:
        return [alone]
    with busy_loops(loops * (os.cpu_count() or 1)):
        third = run(recipe, words)
    return [alone, row(recipe, f"beside {loops} loops a core", first, third)]


def is_the_same(line: Sequence[object]) -> bool:
    """True if all parts of a table line are equal in both runs."""
    return all(line[place] == line[place + 1] for place in (2, 4, 6, 8))


def main() -> None:
    """Run and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="SETTING", help="for every run, e.g. `trainer.batch_size=4`"
    )
    parser.add_argument("--recipes", nargs="+", default=["gsm8k_grpo", "multi_turn"], help="names in recipes/")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--loops", type=int, default=3, help="busy loops per core beside the third run; 0 for no third run"
    )
    options = parse_arguments(parser, QUICK)
    words = [f"steps={options.steps}", f"seed={options.seed}", *options.settings]
    rows = [line for recipe in options.recipes for line in measure(recipe, words, options.loops)]
    print(table(HEADER, rows))
    if not options.no_history:
        append("determinism", {"steps": options.steps, "settings": options.settings, "rows": rows})
    if not all(map(is_the_same, rows)):
        raise SystemExit("two runs with one seed differ: see the table above")


if __name__ == "__main__":
    main()
