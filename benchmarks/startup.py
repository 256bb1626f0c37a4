"""Seconds and CPU seconds of short commands, and of the main recipe to its first step and to its end.

The first time, and again.
    python benchmarks/startup.py [--repeat 5] [--seed 0] [--trackers PYTHON] [--before FOLDER] [SETTING ...]

The main recipe runs twice in one new folder: with another seed than 0, whose embedded model is part of the package, the
first run makes the model, and the second finds it kept. CPU seconds are of all processes together. With `--trackers`,
an interpreter with the libraries of all trackers, the second run is repeated with none, one and all of them, in turn:
CPU seconds of the run's own processes must not differ, those of the trackers are their own. With `--before`, the folder
of another checkout, its runs alternate with those of this one, and the second run is made `--pairs` times.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from history import ROOT, SMALL, append, busy_seconds, others_share, parse_arguments, table

RECIPE = "recipes/gsm8k_grpo.toml"
COMMANDS: dict[str, list[str]] = {
    "--help": ["--help"],
    "run --help": ["run", "--help"],
    "runs": ["runs"],
    "check --static": ["check", RECIPE, "--static", "task.dataset=arithmetic"],
    "check": ["check", RECIPE, "task.dataset=arithmetic"],
    "mistyped": ["trian"],
}
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
QUICK = {"repeat": 1, "settings": list(SMALL), "only": ["--help", "mistyped"]}
Figures = dict[str, Any]


def main() -> None:
    """Measure, print tables and append a line to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    parser.add_argument("--repeat", type=int, default=5, help="times that each command is started; its median is shown")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), choices=COMMANDS, help="commands to measure")
    parser.add_argument("--trackers", default="", metavar="PYTHON", help="interpreter with the trackers' libraries")
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="another checkout, whose runs alternate with this one's"
    )
    parser.add_argument("--pairs", type=int, default=2, help="second runs of each checkout, with --before")
    arguments = parse_arguments(parser, QUICK)
    commands = {name: measure_command(COMMANDS[name], arguments.repeat) for name in arguments.only}
    print(
        table(
            ("areal-actors", "wall s", "CPU s"),
            [(name, found["wall s"], found["CPU s"]) for name, found in commands.items()],
        ),
        flush=True,
    )
    if arguments.before:
        runs = list(measure_pairs(arguments.seed, arguments.settings, arguments.before.absolute(), arguments.pairs))
    else:
        runs = list(measure_runs(arguments.seed, arguments.settings, arguments.trackers))
    header = ("run", "to step 1, s", "wall s", "CPU s", "of the run", "others' share")
    print("\n" + table(header, [[run[name] for name in header] for run in runs]))
    print("\nCPU s by process\n" + by_process(runs))
    if not arguments.no_history:
        print(append("startup", {"settings": arguments.settings, "commands": commands, "runs": runs}))


def by_process(runs: Sequence[Figures]) -> str:
    """Returns a table of the CPU seconds of each run, by process.

    The last column has those of supervisor, nats-server and helpers.
    """
    processes = list(runs[0]["by process"])
    rows = [[run["run"], *(run["by process"].get(name, 0.0) for name in processes), run["besides"]] for run in runs]
    return table(("run", *processes, "besides"), rows)


def measure_command(words: Sequence[str], repeat: int) -> Figures:
    """Medians over several starts of one command."""
    found = []
    for _ in range(repeat):
        before, started = children_seconds(), time.monotonic()
        subprocess.run([sys.executable, "-m", "areal_actors", *words], cwd=ROOT, capture_output=True, check=False)
        found.append((time.monotonic() - started, children_seconds() - before))
    return {"wall s": statistics.median(wall for wall, _ in found), "CPU s": statistics.median(cpu for _, cpu in found)}


def measure_runs(seed: int, settings: Sequence[str], trackers: str) -> Iterator[Figures]:
    """Yields the figures of each run of the main recipe, all in one new folder."""
    tracked: list[tuple[str, tuple[str, ...]]] = [("first", ()), ("second", ())]
    if trackers:
        tracked += [("no tracker", ()), ("one tracker", TRACKERS[:1]), ("all trackers", TRACKERS)]
    with tempfile.TemporaryDirectory() as folder:
        for name, to in tracked:
            words = [f"seed={seed}", f"folder={folder}", f"run={name.replace(' ', '-')}", *settings]
            if to:
                words += [f"track.to={json.dumps(to)}", f"track.python={trackers}"]
            yield {"run": name, **measure_run(words, Path(folder) / name.replace(" ", "-"))}


def measure_pairs(seed: int, settings: Sequence[str], other: Path, pairs: int) -> Iterator[Figures]:
    """Yields the figures of the main recipe's runs in two checkouts, each in a new folder, in turn."""
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(pairs + 1):
            for name, root in (("before", other), ("now", ROOT)):
                folder, run = Path(temporary) / name, f"{'second' if number else 'first'}-{number}"
                words = [f"seed={seed}", f"folder={folder}", f"run={run}", *settings]
                found = {"run": f"{run}, {name}", **measure_run(words, folder / run, root)}
                print(
                    found["run"], round(found["wall s"], 1), round(found["CPU s"], 1), found["by process"], flush=True
                )
                yield found


def measure_run(words: Sequence[str], run_folder: Path, root: Path = ROOT) -> Figures:
    """Run the main recipe once, with the code in `root`.

    Raises:
        CalledProcessError: the run failed.
    """
    before, busy, started, at = children_seconds(), busy_seconds(), time.monotonic(), time.time()
    command = [sys.executable, "-m", "areal_actors", "run", RECIPE, *words]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, cpu = time.monotonic() - started, children_seconds() - before
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    first = next(line["time"] for line in lines if line["kind"] == "step.completed")
    usage = {
        name: used["cpu_seconds"]
        for name, used in json.loads((run_folder / "usage.json").read_text(encoding="utf-8")).items()
    }
    return {
        "to step 1, s": first - at,
        "wall s": wall,
        "CPU s": cpu,
        "of the run": sum(usage.values()),
        "besides": cpu - sum(usage.values()),
        "others' share": others_share(busy_seconds() - busy, cpu, wall),
        "by process": usage,
    }


def children_seconds() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
