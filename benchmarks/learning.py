"""Runs recipes for several seeds and prints accuracy before and after, and the cost.

    python benchmarks/learning.py --seeds 0 1 2 3 4
    python benchmarks/learning.py --seeds 0 1 2 --recipes grpo dapo gspo
    python benchmarks/learning.py --seeds 0 1 2 --recipes sft dpo reward_model
    python benchmarks/learning.py staleness_gate.max_staleness=0 --seeds 0

Without `--recipes` there is a line for each seed of the main recipe; with it a line for each recipe: lowest, median and
highest of its seeds. A recipe is named by its name in recipes/ or by its file. One without a `[task]` table is an
overlay of recipes/gsm8k_grpo.toml, and `grpo` is that recipe itself. A teacher or
reward model of a recipe is trained before it, with the same seed. All recipes of a seed start from the same model.
Results are cached in FOLDER, and not measured again with the same settings.

Accuracy is that of held-out problems, by the rule of the task and never by a reward model; if a run does not report it,
it is measured afterwards. CPU seconds are of all processes of a run together; memory is the peak of the largest
process.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from history import ROOT, SMALL, append, parse_arguments
from seeds import RECIPE, accuracies, append_result, load_recipe, load_results, markdown, spread

Result = dict[str, Any]

COLUMNS: dict[str, Callable[[Result], str]] = {
    "seed": lambda result: str(result["seed"]),
    "before": lambda result: f"{result['before']:.3f}",
    "greedy": lambda result: f"{result['greedy before']:.3f}",
    "after": lambda result: f"{result['after']:.3f}",
    "greedy ": lambda result: f"{result['greedy after']:.3f}",
    "tokens": lambda result: f"{result['tokens before']:.1f} → {result['tokens after']:.1f}",
    "worked": lambda result: f"{result['worked before']:.0%} → {result['worked after']:.0%}",
    "steps": lambda result: str(result["steps"]),
    "wall s": lambda result: f"{result['wall s']:.1f}",
    "CPU s": lambda result: f"{result['CPU s']:.1f}",
    "peak MB": lambda result: f"{max(result['memory'].values()):.0f}",
    "staleness": lambda result: f"{result['staleness mean']:.2f} / {result['staleness max']:.0f}",
    "masked": lambda result: f"{result['masked']:.1%}",
    "parity": lambda result: f"{result['parity']:.1e}",
}
SPREAD = (
    "loss before",
    "loss after",
    "pairs before",
    "pairs after",
    "before",
    "after",
    "greedy before",
    "greedy after",
    "wall s",
    "CPU s",
)
"""Columns with lowest / median / highest of each recipe, if available."""
PREREQUISITES = {
    "distillation": ("grpo", "algorithm.teacher="),
    "reward_model_grpo": ("reward_model", "task.reward=model:"),
}
"""By recipe: the recipe that trains its teacher or reward model, and the setting for it."""


def run(recipes: Sequence[Path], seed: int, folder: Path, settings: Sequence[str]) -> Result:
    """Run once; returns accuracies and cost.

    Raises:
        CalledProcessError: the run failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    words = [*map(str, recipes), f"seed={seed}", f"folder={folder}", *settings]
    subprocess.run(
        [sys.executable, "-m", "areal_actors", "run", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_folder = next(path for path in folder.iterdir() if (path / "metrics.jsonl").exists())
    usage = json.loads((run_folder / "usage.json").read_text())
    metrics = learning_metrics([json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()])
    return {
        "seed": seed,
        "wall s": wall,
        "CPU s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "memory": {name: used["peak_memory_bytes"] / 2**20 for name, used in usage.items()},
        "cpu by process": {name: used["cpu_seconds"] for name, used in usage.items()},
        "checkpoint": str(run_folder / "checkpoints" / f"step-{metrics['steps']}"),
        **metrics,
    }


def learning_metrics(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Extract accuracies and losses from the metrics of a run."""
    metrics = [line["metrics"] for line in lines if line["kind"] == "step.completed"]
    losses = {line["weight_version"]: line["metrics"] for line in lines if line["kind"] == "loss.evaluated"}
    evaluations = {
        (line["mode"], line["weight_version"]): line for line in lines if line["kind"] == "evaluation.completed"
    }
    found = example_metrics(losses[0], losses[len(metrics)]) if losses else episode_metrics(metrics, evaluations)
    return {"steps": len(metrics), **found}


def example_metrics(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    """Held-out loss and pair accuracy."""
    names = [("loss", "loss"), ("pairs", "accuracy")]
    ends = [("before", first), ("after", last)]
    return {f"{name} {when}": values[key] for name, key in names for when, values in ends if key in values}


def episode_metrics(
    metrics: Sequence[dict[str, float]], evaluations: dict[tuple[str, int], dict[str, Any]]
) -> dict[str, float]:
    """Held-out accuracy and metrics of the steps."""
    first, last = evaluations["sampled", 0], evaluations["sampled", len(metrics)]
    return {
        "before": first["accuracy"],
        "after": last["accuracy"],
        "greedy before": evaluations["greedy", 0]["accuracy"],
        "greedy after": evaluations["greedy", len(metrics)]["accuracy"],
        "tokens before": first["mean_tokens"],
        "tokens after": last["mean_tokens"],
        "worked before": first["reward_metrics"].get("shows_work", math.nan),
        "worked after": last["reward_metrics"].get("shows_work", math.nan),
        "staleness mean": statistics.fmean(entry["token_staleness_mean"] for entry in metrics),
        "staleness max": max(entry["token_staleness_max"] for entry in metrics),
        "masked": statistics.fmean(entry["masked_frac"] for entry in metrics),
        "parity": max(entry["train_infer_logprob_diff_max"] for entry in metrics),
    }


# ------------------------------------------------------------ the main recipe


def by_seed(seeds: Sequence[int], settings: Sequence[str]) -> list[Result]:
    """Run all seeds and print a line for each."""
    results: list[Result] = []

    def rows() -> Iterator[list[str]]:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                results.append(run([RECIPE], seed, Path(folder), settings))
            yield [format_value(results[-1]) for format_value in COLUMNS.values()]

    for line in markdown([name.strip() for name in COLUMNS], rows()):
        print(line, flush=True)
    for title, key in (("peak MB", "memory"), ("CPU s", "cpu by process")):
        print(f"\n{title} by process: " + ", ".join(f"{name} {value:.1f}" for name, value in results[-1][key].items()))
    return results


# ------------------------------------------------------------ several recipes


def by_recipe(
    names: Sequence[str], seeds: Sequence[int], folder: Path, settings: Sequence[str]
) -> dict[str, list[Result]]:
    """Run all recipes and print a line for each, over all seeds."""
    found = {name: [measure_recipe(name, seed, folder, settings) for seed in seeds] for name in names}
    columns = [key for key in SPREAD if any(key in result for results in found.values() for result in results)]

    def rows() -> Iterator[list[str]]:
        for name, results in found.items():
            yield [f"`{name}`", str(results[0]["steps"]), *(cell(results, key) for key in columns)]

    print(*markdown(["recipe", "steps", *columns], rows()), sep="\n")
    return found


def cell(results: Sequence[Result], key: str) -> str:
    """The spread of a figure; empty if the recipe does not have it."""
    return spread([result[key] for result in results]) if key in results[0] else ""


def measure_recipe(name: str, seed: int, folder: Path, settings: Sequence[str]) -> Result:
    """Result of a recipe with a seed: cached, or measured now, after its prerequisite."""
    marks = {"recipe": name, "seed": seed, "settings": [*settings]}
    file = folder / "learning.jsonl"
    for result in load_results(file, dict[str, Any]):
        if marks.items() <= result.items():
            return result
    words = [*settings]
    if name in PREREQUISITES:
        before, setting = PREREQUISITES[name]
        words.append(setting + measure_recipe(before, seed, folder, settings)["checkpoint"])
    files = files_of(name)
    recipe = load_recipe(files, [f"seed={seed}", f"folder={folder}", *words])
    own = Path(tempfile.mkdtemp(prefix=f"{recipe.run}-{seed}-", dir=folder))
    result = marks | run(files, seed, own, [*words, f"model={recipe.model}"])
    if recipe.algorithm.head == "tokens" and ("loss before" in result or recipe.task.reward.startswith("model:")):
        for when, model in (("before", recipe.model), ("after", str(result["checkpoint"]))):
            result[when], result[f"greedy {when}"] = accuracies(model, seed)
    append_result(file, result)
    return result


def files_of(name: str) -> list[Path]:
    """The recipe's files: below it the main recipe, unless it has a `[task]` table."""
    if name == "grpo":
        return [RECIPE]
    file = Path(name).absolute() if name.endswith(".toml") else ROOT / "recipes" / f"{name}.toml"
    return [file] if "task" in tomllib.loads(file.read_text(encoding="utf-8")) else [RECIPE, file]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--recipes", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "learning", help="cache of results and models")
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the recipe, as for `areal-actors run`"
    )
    options = parse_arguments(parser, {"seeds": [0], "settings": ["steps=1", *SMALL]})
    if options.recipes:
        options.folder.mkdir(parents=True, exist_ok=True)
        found = by_recipe(options.recipes, options.seeds, options.folder.absolute(), options.settings)
    else:
        found = {"grpo": by_seed(options.seeds, options.settings)}
    if not options.no_history:
        append("learning", {"seeds": options.seeds, "settings": options.settings, "recipes": found})


if __name__ == "__main__":
    main()
