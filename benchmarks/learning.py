"""Does it learn? Runs recipes for several seeds and prints what each learned, and what it cost.

    python benchmarks/learning.py --seeds 0 1 2 3 4
    python benchmarks/learning.py --seeds 0 1 2 --recipes grpo dapo gspo
    python benchmarks/learning.py --seeds 0 1 2 --recipes sft dpo reward_model
    python benchmarks/learning.py staleness_gate.max_staleness=0 --seeds 0

Without `--recipes` there is a line for each seed of the main recipe; with it a line for each recipe: lowest, median and highest
of its seeds. A recipe without a task of its own is laid over recipes/gsm8k_grpo.toml, and `grpo` is that recipe itself. What a
recipe learns from (a teacher, a reward model) is trained before it, with the same seed. A seed's recipes start from the same
model, which is made once. What was measured is kept in FOLDER, and not measured again with the same settings.

Accuracy is that of held-out problems, by the rule of the task and never by a reward model; of a recipe whose run does not tell
it, it is measured afterwards. CPU seconds are of all processes of a run together; memory is the peak of the largest process.
"""

from __future__ import annotations

import argparse
import json
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

from history import ROOT, SMALL, append, parsed
from seeds import RECIPE, accuracies, keep, loaded, markdown, recalled, spread

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
SPREAD = ("loss before", "loss after", "pairs before", "pairs after", "before", "after", "greedy before", "greedy after", "wall s", "CPU s")
"""What is told of each recipe as lowest / median / highest, where it is known."""
TEACHES = {"distillation": ("grpo", "algorithm.teacher="), "reward_model_grpo": ("reward_model", "task.reward=model:")}
"""By recipe: the recipe that makes what it learns from, and the setting that names it."""


def run(recipes: Sequence[Path], seed: int, folder: Path, settings: Sequence[str]) -> Result:
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
    metrics = learned([json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()])
    return {
        "seed": seed,
        "wall s": wall,
        "CPU s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "memory": {name: used["peak_memory_bytes"] / 2**20 for name, used in usage.items()},
        "cpu by process": {name: used["cpu_seconds"] for name, used in usage.items()},
        "checkpoint": str(run_folder / "checkpoints" / f"step-{metrics['steps']}"),
        **metrics,
    }


def learned(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What the metrics of a run say of its learning."""
    metrics = [line["metrics"] for line in lines if line["kind"] == "step.completed"]
    losses = {line["weight_version"]: line["metrics"] for line in lines if line["kind"] == "loss.evaluated"}
    evaluations = {(line["mode"], line["weight_version"]): line for line in lines if line["kind"] == "evaluation.completed"}
    told = of_examples(losses[0], losses[len(metrics)]) if losses else of_episodes(metrics, evaluations)
    return {"steps": len(metrics), **told}


def of_examples(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    """Held-out loss, and how many pairs are told apart."""
    names = [("loss", "loss"), ("pairs", "accuracy")]
    ends = [("before", first), ("after", last)]
    return {f"{name} {when}": measured[key] for name, key in names for when, measured in ends if key in measured}


def of_episodes(metrics: Sequence[dict[str, float]], evaluations: dict[tuple[str, int], dict[str, Any]]) -> dict[str, float]:
    """Held-out accuracy, and how the steps went."""
    first, last = evaluations["sampled", 0], evaluations["sampled", len(metrics)]
    return {
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


# ------------------------------------------------------------ the main recipe


def by_seed(seeds: Sequence[int], settings: Sequence[str]) -> list[Result]:
    """A line for each seed."""
    results: list[Result] = []

    def rows() -> Iterator[list[str]]:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                results.append(run([RECIPE], seed, Path(folder), settings))
            yield [told(results[-1]) for told in COLUMNS.values()]

    for line in markdown([name.strip() for name in COLUMNS], rows()):
        print(line, flush=True)
    for title, key in (("peak MB", "memory"), ("CPU s", "cpu by process")):
        print(f"\n{title} by process: " + ", ".join(f"{name} {value:.1f}" for name, value in results[-1][key].items()))
    return results


# ------------------------------------------------------------ several recipes


def by_recipe(names: Sequence[str], seeds: Sequence[int], folder: Path, settings: Sequence[str]) -> dict[str, list[Result]]:
    """A line for each recipe, over all seeds."""
    told = {name: [measured(name, seed, folder, settings) for seed in seeds] for name in names}
    columns = [key for key in SPREAD if any(key in result for results in told.values() for result in results)]

    def rows() -> Iterator[list[str]]:
        for name, results in told.items():
            yield [f"`{name}`", str(results[0]["steps"]), *(cell(results, key) for key in columns)]

    print(*markdown(["recipe", "steps", *columns], rows()), sep="\n")
    return told


def cell(results: Sequence[Result], key: str) -> str:
    """The spread of a figure; empty if the recipe has no such thing."""
    return spread([result[key] for result in results]) if key in results[0] else ""


def measured(name: str, seed: int, folder: Path, settings: Sequence[str]) -> Result:
    """What a recipe learned with a seed: kept, or found out now, after whatever it learns from."""
    marks = {"recipe": name, "seed": seed, "settings": [*settings]}
    file = folder / "learning.jsonl"
    for result in recalled(file, dict[str, Any]):
        if marks.items() <= result.items():
            return result
    words = [*settings]
    if name in TEACHES:
        before, setting = TEACHES[name]
        words.append(setting + measured(before, seed, folder, settings)["checkpoint"])
    files = files_of(name)
    recipe = loaded(files, [f"seed={seed}", f"folder={folder}", *words])
    own = Path(tempfile.mkdtemp(prefix=f"{name}-{seed}-", dir=folder))
    result = marks | run(files, seed, own, [*words, f"model={recipe.model}"])
    if recipe.algorithm.head == "tokens" and ("loss before" in result or recipe.task.reward.startswith("model:")):
        for when, model in (("before", recipe.model), ("after", str(result["checkpoint"]))):
            result[when], result[f"greedy {when}"] = accuracies(model, seed)
    keep(file, result)
    return result


def files_of(name: str) -> list[Path]:
    """The recipe, below it the main one unless it has a task of its own."""
    if name == "grpo":
        return [RECIPE]
    file = ROOT / "recipes" / f"{name}.toml"
    return [file] if "task" in tomllib.loads(file.read_text(encoding="utf-8")) else [RECIPE, file]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--recipes", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "learning", help="where results and models are kept")
    parser.add_argument("settings", nargs="*", default=[], metavar="KEY=VALUE", help="laid over the recipe, as for `areal run`")
    options = parsed(parser, {"seeds": [0], "settings": ["steps=1", *SMALL]})
    if options.recipes:
        options.folder.mkdir(parents=True, exist_ok=True)
        found = by_recipe(options.recipes, options.seeds, options.folder.absolute(), options.settings)
    else:
        found = {"grpo": by_seed(options.seeds, options.settings)}
    if not options.no_history:
        append("learning", {"seeds": options.seeds, "settings": options.settings, "recipes": found})


if __name__ == "__main__":
    main()
