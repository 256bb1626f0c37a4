"""Answers of a recorded run about other settings, beside runs with these settings.

    python benchmarks/what_if.py [--steps 12] [--early 3] [--seed 0] [--questions reward discount ...] [SETTING ...]

One asynchronous run of recipes/multi_turn.toml is recorded. `areal-actors what-if --train` answers each question from
its log; then the recipe is run with the question's setting, which is the truth, and once more without any, which is the
noise: an asynchronous run is never the same twice. The table has, for the metrics that a question is about, the mean
over the first steps (`--early`) and over all steps: recorded, answered, and true. `sample` is the effective sample size
of the tokens from the first changed weights on: what is answered for the later steps counts as far as it is near 1. A
question about sampling must be refused.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from history import SMALL, append, areal, parse_arguments, table

from areal_actors.cli import WRONG_RECIPE
from areal_actors.reader import open_run

RECIPE = "recipes/multi_turn.toml"
RECORDED = ("algorithm.minibatches=2", "evaluation.every_steps=0")
"""With two minibatches ratios differ from 1, so that a clip has an effect."""
REWARD = """\
def short(task, output):
    return 1.0 if len(output) < 60 else 0.0
"""
QUESTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reward": ("task.reward={folder}/rewards.py:short", ("reward_mean", "advantage_std")),
    "discount": ("task.turn_discount=0.3", ("advantage_std", "grad_norm")),
    "algorithm": ("algorithm.name=rloo", ("advantage_std", "grad_norm")),
    "clip": ("algorithm.clip=0.02", ("clip_frac", "grad_norm")),
    "staleness 0": ("staleness_gate.max_staleness=0", ("token_staleness_mean", "masked_frac")),
    "filter": ("batcher.dynamic_sampling=true", ("reward_mean", "groups_without_signal")),
}
"""Setting of each question, and the metrics that it is about."""
REFUSED = "sampling.temperature=0.5"
QUICK = {"steps": 2, "early": 1, "questions": ["clip"], "settings": list(SMALL)}
Steps = list[dict[str, float]]


class Answer(msgspec.Struct, frozen=True):
    """Means of a metric: over the first steps, and over all."""

    question: str
    metric: str
    first_change: int
    """First step that trains other episodes or advantages; 0 if only the loss differs."""
    sample: float
    """Mean effective sample size from the first changed weights on."""
    early: dict[str, float]
    """By `recorded`, `answered`, `true` and `again`."""
    whole: dict[str, float]


def run(name: str, folder: Path, options: argparse.Namespace, *settings: str) -> Steps:
    """Run the recipe; returns the metrics of its steps."""
    fixed = ["profile=embedded", f"run={name}", f"folder={folder}", f"steps={options.steps}", f"seed={options.seed}"]
    areal("run", RECIPE, *fixed, *RECORDED, *options.settings, *settings)
    return [
        {key: value for key, value in row.items() if value is not None} for row in open_run(str(folder / name)).steps
    ]


def ask(run_folder: Path, setting: str) -> dict[str, Any]:
    """Return what the log answers."""
    answer: dict[str, Any] = json.loads(areal("what-if", str(run_folder), setting, "--train", "--json").stdout)
    return answer


def answered_steps(found: Mapping[str, Any]) -> Steps:
    """Metrics of the steps of a what-if: those of the batches, and those of its trainer."""
    trained = found["trained"][1]["metrics"]
    return [{**after, **before} for before, after in zip(found["replayed"]["steps"], trained, strict=True)]


def sample_size(found: Mapping[str, Any]) -> float:
    """Mean effective sample size of the steps with other weights than the recorded ones; 1 if there are none."""
    recorded, now = found["trained"]
    changed = next(
        (
            int(version)
            for version, checksum in now["checksums"].items()
            if recorded["checksums"].get(version) != checksum
        ),
        None,
    )
    later = [] if changed is None else now["metrics"][changed:]
    return mean(later, "effective_sample_size") if later else 1.0


def mean(steps: Sequence[Mapping[str, float]], metric: str) -> float:
    """Mean over the steps that have this metric; NaN if none has."""
    values = [step[metric] for step in steps if metric in step]
    return sum(values) / len(values) if values else float("nan")


def answers(folder: Path, options: argparse.Namespace) -> Iterator[Answer]:
    """Record a run, and yield the answers and truths of all questions."""
    (folder / "rewards.py").write_text(REWARD, encoding="utf-8")
    sides = {"recorded": run("recorded", folder, options), "again": run("again", folder, options)}
    for question in options.questions:
        setting, metrics = QUESTIONS[question]
        setting = setting.format(folder=folder)
        began = time.perf_counter()
        found = ask(folder / "recorded", setting)
        print(f"{question}: answered in {time.perf_counter() - began:.1f} s", flush=True)
        sides |= {"answered": answered_steps(found), "true": run(question.replace(" ", "-"), folder, options, setting)}
        for metric in metrics:
            early, whole = (
                {name: mean(steps[:count], metric) for name, steps in sides.items()} for count in (options.early, None)
            )
            yield Answer(question, metric, found["first_change"], sample_size(found), early, whole)


HEADER = (
    *("question", "metric", "first change", "sample"),
    *(f"{part}: {side}" for part in ("early", "whole") for side in ("recorded", "answered", "true", "again")),
)


def row(one: Answer) -> list[object]:
    """Return a line of the table."""
    means = [
        f"{part[side]:.3g}" for part in (one.early, one.whole) for side in ("recorded", "answered", "true", "again")
    ]
    return [one.question, one.metric, one.first_change, f"{one.sample:.3f}", *means]


def main() -> None:
    """Ask and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="SETTING", help="for every run, e.g. `trainer.batch_size=4`"
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--early", type=int, default=3, help="number of first steps with a mean of their own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", nargs="+", default=list(QUESTIONS), choices=QUESTIONS)
    options = parse_arguments(parser, QUICK)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = list(answers(folder, options))
        refused = areal("what-if", str(folder / "recorded"), REFUSED, allowed=(WRONG_RECIPE,))
    print(table(HEADER, [row(one) for one in found]))
    print(f"{REFUSED}: {refused.stderr.strip()}")
    if not options.no_history:
        print(
            append("what_if", {"steps": options.steps, "early": options.early, "answers": msgspec.to_builtins(found)})
        )


if __name__ == "__main__":
    main()
