"""The off-policy guard in live runs that diverge: what `[staleness_gate.guard]` reports, and what it prevents.

    PYTHONPATH=benchmarks python benchmarks/archive/guard.py [KEY=VALUE ...] [--seeds 0 1 2] [--bound 8]
        [--rate 4] [--cases sound off report tighten]

Each run is `areal-actors run recipes/gsm8k_grpo.toml` with a staleness bound of 8, in its own processes. Its trainer
waits before each step until generation has used the capacity that the gate grants (`guard_parts.py`), so the trained
tokens are as old as the bound allows, on any machine. `sound` has the recipe's learning rate, and a guard that reports;
the others have four times that, with the guard's `action` off, report and tighten. KEY=VALUE overrides the recipe. A
seed's runs begin with the same model.

Results are cached in FOLDER/results.jsonl, with the warm-started models.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from history import ROOT, SMALL, append, areal, parse_arguments
from seeds import RECIPE, append_result, load_recipe, load_results, markdown

from areal_actors.messages import EvaluationCompleted, OffPolicyChanged, StepCompleted
from areal_actors.staleness.off_policy_guard import OffPolicyGuardConfig

CASES = {"sound": "report", "off": "off", "report": "report", "tighten": "tighten"}
"""Action of the guard in each case."""
PARTS = ROOT / "benchmarks" / "guard_parts.py"
WATCHED = (
    "effective_sample_size",
    "approx_kl",
    "masked_frac",
    "token_staleness_mean",
    "token_staleness_max",
    "entropy",
    "grad_norm",
    "reward_mean",
)


class Variant(msgspec.Struct, frozen=True):
    """Configuration of one run."""

    case: str
    seed: int
    bound: int
    rate: float
    """Factor of the recipe's learning rate, in the cases that are not sound."""
    steps: int
    settings: tuple[str, ...]

    def words(self, folder: Path) -> list[str]:
        """The settings of its recipe."""
        return [
            "profile=embedded",
            f"steps={self.steps}",
            f"evaluation.every_steps={max(self.steps // 6, 1)}",
            "evaluation.tasks=100",
            "checkpoint.every_steps=0",
            f"staleness_gate.max_concurrent={(self.bound + 1) * 16}",
            *self.settings,
            f"run=guard-{self.case}-{self.seed}",
            f"folder={folder}",
            f"seed={self.seed}",
            f"staleness_gate.max_staleness={self.bound}",
            f"staleness_gate.guard.action={CASES[self.case]}",
            "algorithm.name=custom",
            f"algorithm.path={PARTS}:PatientGrpo",
            f"task.reward={PARTS}:marked_gsm8k",
        ]


class Outcome(msgspec.Struct, frozen=True):
    """Result of a variant."""

    variant: Variant
    sampled: dict[int, float]
    """Held-out accuracy by the number of steps taken: 0, some in between, and all."""
    greedy: dict[int, float]
    """The same, of 0 and all."""
    steps: list[dict[str, float]]
    """Metrics of each step that the guard watches, and some more."""
    bounds: dict[int, int]
    """Staleness bound from its changes on, by the step after which it changed; 0 is the start."""


def run(variant: Variant, folder: Path) -> Outcome:
    """Run the command line once."""
    words = variant.words(folder)
    recipe = load_recipe([RECIPE], words)
    rate = recipe.trainer.optimizer.lr * (1.0 if variant.case == "sound" else variant.rate)
    with tempfile.TemporaryDirectory() as temporary:
        mark = Path(temporary) / "mark"
        mark.touch()
        words += [f"folder={temporary}", f"model={recipe.model}", f"trainer.optimizer.lr={rate}"]
        areal("run", str(RECIPE), *words, environment={"OMP_NUM_THREADS": "1", **os.environ, "GUARD_MARK": str(mark)})
        lines = (Path(temporary) / recipe.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return outcome(variant, [json.loads(line) for line in lines])


def outcome(variant: Variant, lines: Sequence[Mapping[str, Any]]) -> Outcome:
    """Read the metrics of a run."""
    evaluated = [line for line in lines if line["kind"] == EvaluationCompleted.subject]
    steps = [line["metrics"] for line in lines if line["kind"] == StepCompleted.subject]
    changes = [
        line for line in lines if line["kind"] == OffPolicyChanged.subject and line["max_staleness"] != line["before"]
    ]
    return Outcome(
        variant=variant,
        sampled={line["weight_version"]: line["accuracy"] for line in evaluated if line["mode"] == "sampled"},
        greedy={line["weight_version"]: line["accuracy"] for line in evaluated if line["mode"] == "greedy"},
        steps=[{name: step[name] for name in WATCHED if name in step} for step in steps],
        bounds={0: variant.bound, **{line["step"]: line["max_staleness"] for line in changes}},
    )


def row(one: Outcome) -> list[str]:
    """The line of a run in the table."""
    outside = [number for number, step in enumerate(one.steps, start=1) if any(OffPolicyGuardConfig().outside(step))]
    first, *rest = [accuracy for _, accuracy in sorted(one.sampled.items())]
    lowered = [f"{bound} at {step}" for step, bound in one.bounds.items() if step]
    return [
        one.variant.case,
        str(one.variant.seed),
        f"{first:.2f}",
        f"{max(rest):.2f}",
        f"{rest[-1]:.2f}",
        f"{one.greedy[len(one.steps)]:.2f}",
        f"{statistics.fmean(step['token_staleness_mean'] for step in one.steps):.1f}",
        f"{min(step['effective_sample_size'] for step in one.steps):.2f}",
        f"{max(step['approx_kl'] for step in one.steps):.2f}",
        str(len(outside)),
        str(outside[0]) if outside else "none",
        ", ".join(lowered) or "no change",
    ]


HEADER = (
    *("case", "seed", "sampled, before", "best", "after", "greedy, after", "mean staleness"),
    *("smallest effective sample", "largest approx_kl", "steps outside", "first", "bound"),
)


def main() -> None:
    """Run missing variants, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--bound", type=int, default=8, metavar="VERSIONS")
    parser.add_argument("--rate", type=float, default=4.0, metavar="TIMES")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "guard")
    parser.add_argument("settings", nargs="*", default=[], metavar="KEY=VALUE")
    options = parse_arguments(
        parser,
        {
            "bound": 1,
            "steps": 3,
            "cases": ["tighten"],
            "seeds": [0],
            "settings": [*SMALL, "staleness_gate.guard.max_approx_kl=0"],
        },
    )
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            print(*markdown(HEADER, map(row, measure_variants(options, Path(folder)))), sep="\n")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    outcomes = list(measure_variants(options, options.folder.absolute()))
    print(*markdown(HEADER, map(row, outcomes)), sep="\n")
    if not options.no_history:
        append(
            "guard", {"outcomes": msgspec.to_builtins(outcomes, str_keys=True), "rows": [row(one) for one in outcomes]}
        )


def measure_variants(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """Yield the outcomes of all variants, from the cache where available."""
    file = folder / "results.jsonl"
    kept = {found.variant: found for found in load_results(file, Outcome)}
    for case, seed in itertools.product(options.cases, options.seeds):
        variant = Variant(case, seed, options.bound, options.rate, options.steps, tuple(options.settings))
        if (found := kept.get(variant)) is None:
            found = run(variant, folder)
            append_result(file, found)
        yield found


if __name__ == "__main__":
    main()
