"""Does it learn? Runs recipes for several seeds and prints what each learned, and what it cost.

    python benchmarks/learning.py --seeds 0 1 2 3 4
    python benchmarks/learning.py --seeds 0 1 2 --recipes grpo dapo gspo
    python benchmarks/learning.py --seeds 0 1 2 --staleness 0 2 4 8
    python benchmarks/learning.py --seeds 0 staleness_gate.max_staleness=0

Without `--recipes` or `--staleness` there is a line for each seed; with them a line for each variant: lowest, median and
highest of its seeds. `--recipes` names overlays of recipes/gsm8k_grpo.toml (`grpo` is that recipe itself); `--staleness`
compares decoupled PPO with the naive loss, whose ratio is to the behaviour weights, at these bounds. A seed's variants all
start from the same warmed-up model, which is made once. CPU seconds are of all processes of the run together; memory is the
peak of the largest process.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "gsm8k_grpo.toml"
NAIVE = "algorithm.correction.decoupled=false"
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "seed": lambda result: str(result["seed"]),
    "before": lambda result: f"{result['before']:.3f}",
    "greedy": lambda result: f"{result['greedy before']:.3f}",
    "after": lambda result: f"{result['after']:.3f}",
    "greedy ": lambda result: f"{result['greedy after']:.3f}",
    "tokens": lambda result: f"{result['tokens before']:.1f} → {result['tokens after']:.1f}",
    "worked": lambda result: f"{result['worked before']:.0%} → {result['worked after']:.0%}",
    "steps": lambda result: str(result["steps"]),
    "wall s": lambda result: f"{result['wall']:.1f}",
    "CPU s": lambda result: f"{result['cpu']:.1f}",
    "peak MB": lambda result: f"{max(result['memory'].values()):.0f}",
    "staleness": lambda result: f"{result['staleness mean']:.2f} / {result['staleness max']:.0f}",
    "masked": lambda result: f"{result['masked']:.1%}",
    "parity": lambda result: f"{result['parity']:.1e}",
}
SPREAD = ("before", "after", "greedy before", "greedy after", "tokens after", "wall", "cpu")
"""What is told of each variant as lowest / median / highest."""


def run(recipes: Sequence[Path], seed: int, folder: Path, settings: Sequence[str]) -> dict[str, Any]:
    """One run; returns what it learned and cost.

    Raises:
        CalledProcessError: it failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    words = [*map(str, recipes), f"seed={seed}", f"folder={folder}", *settings]
    subprocess.run([sys.executable, "-m", "areal_actors", "run", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_folder = next(path for path in folder.iterdir() if (path / "metrics.jsonl").exists())
    usage = json.loads((run_folder / "usage.json").read_text())
    return {
        "seed": seed,
        "wall": wall,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "memory": {name: used["peak_memory_bytes"] / 2**20 for name, used in usage.items()},
        "cpu by process": {name: used["cpu_seconds"] for name, used in usage.items()},
        **learned([json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]),
    }


def learned(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What the metrics of a run say of its learning."""
    metrics = [line["metrics"] for line in lines if line["kind"] == "step.completed"]
    evaluations = {(line["mode"], line["weight_version"]): line for line in lines if line["kind"] == "evaluation.completed"}
    first, last = evaluations["sampled", 0], evaluations["sampled", len(metrics)]
    return {
        "steps": len(metrics),
        "before": first["accuracy"],
        "after": last["accuracy"],
        "greedy before": evaluations["greedy", 0]["accuracy"],
        "greedy after": evaluations["greedy", len(metrics)]["accuracy"],
        "tokens before": first["mean_tokens"],
        "tokens after": last["mean_tokens"],
        "worked before": first["worked_share"],
        "worked after": last["worked_share"],
        "staleness mean": statistics.fmean(entry["token_staleness_mean"] for entry in metrics),
        "staleness max": max(entry["token_staleness_max"] for entry in metrics),
        "masked": statistics.fmean(entry["masked_share"] for entry in metrics),
        "parity": max(entry["max_logprob_difference"] for entry in metrics),
    }


def line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


def by_seed(seeds: Sequence[int], settings: Sequence[str]) -> None:
    """The main recipe, a line for each seed."""
    print(line([name.strip() for name in COLUMNS]))
    print("|" + "---|" * len(COLUMNS))
    results = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            results.append(run([RECIPE], seed, Path(folder), settings))
        print(line([told(results[-1]) for told in COLUMNS.values()]), flush=True)
    for title, key in (("peak MB", "memory"), ("CPU s", "cpu by process")):
        print(f"\n{title} by process: " + ", ".join(f"{name} {value:.1f}" for name, value in results[-1][key].items()))


def variants_of(options: argparse.Namespace) -> dict[str, tuple[list[Path], list[str]]]:
    """Recipes and settings of each variant, by the name it has in the table."""
    if options.recipes:
        overlays = {name: [] if name == "grpo" else [ROOT / "recipes" / f"{name}.toml"] for name in options.recipes}
        return {name: ([RECIPE, *overlay], []) for name, overlay in overlays.items()}
    return {
        f"{name}, staleness {bound}": ([RECIPE], [f"staleness_gate.max_staleness={bound}", *rest])
        for bound in options.staleness
        for name, rest in (("decoupled", ()), ("naive", (NAIVE,)))
    }


def by_variant(options: argparse.Namespace) -> None:
    """A line for each variant, over all seeds."""
    print(line(["variant", *SPREAD, "steps", "staleness mean / max"]))
    print("|" + "---|" * (len(SPREAD) + 3))
    with tempfile.TemporaryDirectory() as kept:
        models = {seed: warmed_up(seed, Path(kept) / str(seed)) for seed in options.seeds}
        for name, (recipes, settings) in variants_of(options).items():
            results = []
            for seed in options.seeds:
                with tempfile.TemporaryDirectory() as folder:
                    own = [*settings, f"model={models[seed]}", *options.settings]
                    results.append(run(recipes, seed, Path(folder), own))
            spread = [" / ".join(f"{value:.3g}" for value in _spread([result[key] for result in results])) for key in SPREAD]
            stale = [max(result[key] for result in results) for key in ("staleness mean", "staleness max")]
            print(line([name, *spread, str(results[-1]["steps"]), f"{stale[0]:.2f} / {stale[1]:.0f}"]), flush=True)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)


def warmed_up(seed: int, folder: Path) -> str:
    """The embedded model that the main recipe makes with this seed."""
    words = [str(RECIPE), f"seed={seed}", f"folder={folder}", "steps=1", "evaluation.tasks=0"]
    subprocess.run([sys.executable, "-m", "areal_actors", "run", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (run_folder,) = [path for path in folder.iterdir() if (path / "metrics.jsonl").exists()]
    return os.fspath(run_folder / "model")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    variants = parser.add_mutually_exclusive_group()
    variants.add_argument("--recipes", nargs="+", default=[], metavar="NAME")
    variants.add_argument("--staleness", type=int, nargs="+", default=[], metavar="BOUND")
    parser.add_argument("settings", nargs="*", default=[], help="laid over the recipe, as for `areal run`")
    options = parser.parse_args()
    if options.recipes or options.staleness:
        by_variant(options)
    else:
        by_seed(options.seeds, options.settings)


if __name__ == "__main__":
    main()
