"""Does it learn? Runs a recipe for several seeds and prints what each learned, and what it cost.

    python benchmarks/learning.py --seeds 0 1 2 3 4
    python benchmarks/learning.py --seeds 0 staleness_gate.max_staleness=0

CPU seconds are of all processes of the run together; memory is the peak of the largest process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "gsm8k_grpo.toml"
COLUMNS = (
    "seed",
    "before",
    "greedy",
    "after",
    "greedy",
    "tokens",
    "worked",
    "steps",
    "wall s",
    "CPU s",
    "peak MB",
    "staleness",
    "masked",
    "parity",
)


def run(seed: int, folder: Path, settings: list[str]) -> dict[str, Any]:
    """One run; returns what it learned and cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    words = [str(RECIPE), f"seed={seed}", f"folder={folder}", *settings]
    subprocess.run([sys.executable, "-m", "areal_actors", "run", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_folder = next(path for path in folder.iterdir() if (path / "metrics.jsonl").exists())
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step.completed"]
    evaluations = [line for line in lines if line["kind"] == "evaluation.completed"]
    usage = json.loads((run_folder / "usage.json").read_text())
    return {
        "seed": seed,
        "evaluations": {f"{line['mode']} {line['weight_version']}": line for line in evaluations},
        "steps": steps,
        "wall": wall,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "memory": {name: used["peak_memory_bytes"] / 2**20 for name, used in usage.items()},
        "cpu by process": {name: used["cpu_seconds"] for name, used in usage.items()},
    }


def row(result: dict[str, Any]) -> list[str]:
    """A result as a line of the table."""
    last = len(result["steps"])
    evaluations = result["evaluations"]
    first, final = evaluations["sampled 0"], evaluations[f"sampled {last}"]
    metrics = [step["metrics"] for step in result["steps"]]
    staleness = max(entry["token_staleness_max"] for entry in metrics)
    masked = sum(entry["masked_share"] for entry in metrics) / last
    mean = sum(entry["token_staleness_mean"] for entry in metrics) / last
    return [
        str(result["seed"]),
        f"{first['accuracy']:.3f}",
        f"{evaluations['greedy 0']['accuracy']:.3f}",
        f"{final['accuracy']:.3f}",
        f"{evaluations[f'greedy {last}']['accuracy']:.3f}",
        f"{first['mean_tokens']:.1f} → {final['mean_tokens']:.1f}",
        f"{first['worked_share']:.0%} → {final['worked_share']:.0%}",
        str(last),
        f"{result['wall']:.1f}",
        f"{result['cpu']:.1f}",
        f"{max(result['memory'].values()):.0f}",
        f"{mean:.2f} / {staleness:.0f}",
        f"{masked:.1%}",
        f"{max(entry['max_logprob_difference'] for entry in metrics):.1e}",
    ]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("settings", nargs="*", help="laid over the recipe, as for `areal run`")
    options = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    results = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(seed, Path(folder), options.settings))
        print("| " + " | ".join(row(results[-1])) + " |", flush=True)
    for title, key in (("peak MB", "memory"), ("CPU s", "cpu by process")):
        print(f"\n{title} by process: " + ", ".join(f"{name} {value:.1f}" for name, value in results[-1][key].items()))


if __name__ == "__main__":
    main()
