"""Cost of `areal-actors fork` with four arms, beside one whole run and beside four whole runs with the same settings.

    python benchmarks/fork.py [--steps 40] [--at 20] [SETTING ...]

A run of recipes/gsm8k_grpo.toml is forked at a checkpoint: two arms with other settings of the trainer, one of the
batches, one of the sampling. CPU seconds are those of all processes. The bytes of each fork's folder that are its own,
and those that are links to files of the run, are in the history, too.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from history import SMALL, append, areal, parse_arguments, table

RECIPE = "recipes/gsm8k_grpo.toml"
ARMS = {
    "lr": "trainer.optimizer.lr=4e-4",
    "rloo": "algorithm.name=rloo",
    "young": "staleness_gate.max_staleness=1",
    "cool": "sampling.temperature=0.8",
}
KEPT = ("evaluation.every_steps=0", "evaluation.tasks=0", "checkpoint.every_steps=1", "checkpoint.keep_last=1000")
QUICK = {"steps": 4, "at": 2, "arms": 1, "settings": list(SMALL)}


def measure(call: Callable[[], object]) -> tuple[float, float]:
    """Returns CPU seconds of the processes of a call, and its seconds."""
    before, began = _children_seconds(), time.monotonic()
    call()
    return _children_seconds() - before, time.monotonic() - began


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def own_bytes(folder: Path) -> tuple[int, int]:
    """Bytes of the files of a folder that no other folder shares, and bytes of those that are links to shared ones."""
    own = linked = 0
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            state = path.stat()
            if state.st_nlink > 1:
                linked += state.st_size
            else:
                own += state.st_size
    return own, linked


def run(folder: Path, name: str, options: argparse.Namespace, *settings: str) -> None:
    """Run the recipe from its start."""
    fixed = ["profile=embedded", f"run={name}", f"folder={folder}", f"steps={options.steps}", "algorithm.group_size=4"]
    areal("run", RECIPE, *fixed, "trainer.batch_size=8", *options.settings, *KEPT, *settings)


def fork(folder: Path, at: int, settings: dict[str, str]) -> list[str]:
    """Fork the run at its first checkpoint from this step on; returns what each arm shares with it."""
    kept = [int(path.name.removeprefix("step-")) for path in (folder / "whole" / "checkpoints").glob("step-*")]
    arms = [word for name, setting in settings.items() for word in ("--arm", name, setting)]
    step = min(number for number in kept if number >= at)
    printed = areal("fork", "whole", "--at", f"step-{step}", "--folder", str(folder), *arms).stderr
    return [line for line in printed.splitlines() if "are shared" in line]


def main() -> None:
    """Run, fork, run again, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--at", type=int, default=20)
    parser.add_argument("--arms", type=int, default=len(ARMS), help="number of arms")
    parser.add_argument("settings", nargs="*", default=[])
    options = parse_arguments(parser, QUICK)
    arms = dict(list(ARMS.items())[: options.arms])
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory(prefix="areal-fork-") as temporary:
        folder = Path(temporary)
        costs = {"one whole run": measure(lambda: run(folder, "whole", options))}
        shared: list[str] = []
        costs[f"{len(arms)} arms from step {options.at}"] = measure(
            lambda: shared.extend(fork(folder, options.at, arms))
        )
        sizes = {name: own_bytes(folder / name) for name in arms}

        def run_whole_arms() -> None:
            for name, setting in arms.items():
                run(folder, f"whole-{name}", options, setting)

        costs[f"{len(arms)} whole runs"] = measure(run_whole_arms)
        rows = [[name, cpu, wall, cpu / costs["one whole run"][0]] for name, (cpu, wall) in costs.items()]
    print(table(["what", "CPU seconds", "seconds", "of one run"], rows))
    print("\n".join(shared))
    if not options.no_history:
        kinds = {str(row[0]): {"cpu_seconds": row[1], "seconds": row[2]} for row in rows}
        append(
            "fork",
            {"steps": options.steps, "at": options.at, "costs": kinds, "shared": shared, "own_and_linked_bytes": sizes},
        )


if __name__ == "__main__":
    main()
