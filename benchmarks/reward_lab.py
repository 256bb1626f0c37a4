"""Error bars of `areal-actors what-if RUN reward=…`, with a real run as the truth, and its seconds for a long log.

    python benchmarks/reward_lab.py [--pairs 50] [--groups 32] [--steps 100] [--episodes 100000] [SETTING ...]

Two runs of recipes/gsm8k_grpo.toml sample from the same weights (their learning rate is next to nothing) under other
seeds, so with other tasks. For each pair of a recorded and a new reward, the lab sees its own `--groups` groups of the
first run, which no other pair sees. The table has, for each figure, the pairs whose 95 % interval holds the truth: the
figure of all groups of that run, and of all groups of the second run.

Then the command scores a synthetic log of `--episodes` short episodes with a rule; the seconds are its CPU time, from
start to end of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import resource
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from history import SMALL, append, areal, parse_arguments, table
from synthetic_log import write_synthetic_log

from areal_actors.core.values import Trajectory
from areal_actors.messages import RunStarted
from areal_actors.recipe.recipe import Recipe
from areal_actors.replay.recorded_batches import RECEIVED, RecordedBatches
from areal_actors.replay.reward_lab import RewardLab, compare_rewards
from areal_actors.replay.what_if_side import side_of
from areal_bus.recorded import read_log

Rule = Callable[[dict[str, object], str], float]
RECIPE = "recipes/gsm8k_grpo.toml"
STILL = ("evaluation.every_steps=0", "checkpoint.every_steps=0", "trainer.optimizer.lr=1e-12")
RULES: dict[str, Rule] = {
    "correct": lambda task, output: float(_last(output) == _last(str(task["answer"]))),
    "shows_work": lambda _, output: float("<<" in output),
    "short": lambda _, output: float(len(output) < 60),
    "length": lambda _, output: len(output) / 100,
    "brief_correct": lambda task, output: float(_last(output) == _last(str(task["answer"]))) - len(output) / 400,
    "even": lambda _, output: float(_last(output)[-1:] in {"0", "2", "4", "6", "8"}),
    "large": lambda _, output: float(len(_last(output)) > 1),
    "lines": lambda _, output: float(output.count("\n")),
    "digits": lambda _, output: sum(character.isdigit() for character in output) / 10,
    "close": lambda task, output: 1 / (1 + abs(_number(output) - _number(str(task["answer"])))),
}
FIGURES = {
    "now": "mean of the new reward",
    "difference": "its difference to the recorded one",
    "groups_flipped": "groups whose ranking flips",
    "signs_changed": "episodes whose advantage changes sign",
    "steps_agree": "cosine of both advantages",
    "next/was/now_reward": "change of the new reward by a step on the recorded one",
    "next/now/now_reward": "change of the new reward by a step on it",
    "next/now/tokens": "change of the sampled tokens by that step",
}
QUICK = {"pairs": 2, "groups": 4, "steps": 2, "episodes": 2000, "settings": list(SMALL)}
SCORED_BY = "def brief(task, output):\n    return 1.0 if len(output) < 20 else 0.0\n"


def _last(text: str) -> str:
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else ""


def _number(text: str) -> float:
    return float(_last(text) or 1e9)


def record_both(folder: Path, options: argparse.Namespace) -> list[Path]:
    """Record two runs; the model of the second is that of the first, since an embedded model is made for its seed."""
    first = record("first", folder, options, 10)
    return [first, record("second", folder, options, 11, f"model={folder / 'first' / 'model'}")]


def record(name: str, folder: Path, options: argparse.Namespace, seed: int, *settings: str) -> Path:
    """Run the recipe at still weights; returns its exported log."""
    fixed = ["profile=embedded", f"run={name}", f"folder={folder}", f"steps={options.steps}", f"seed={seed}"]
    areal("run", RECIPE, *fixed, "algorithm.group_size=4", *options.settings, *STILL, *settings)
    areal("export", str(folder / name), str(folder / f"{name}.log"))
    return folder / f"{name}.log"


class Scored(msgspec.Struct):
    """Episodes of a log under one rule."""

    trajectories: dict[int, Trajectory]
    advantages: dict[str, float]


def score(log: Path, rule: Rule) -> Scored:
    """Score a log with a rule, as `what-if` does."""
    return asyncio.run(_score(log, rule))


async def _score(log: Path, rule: Rule) -> Scored:
    kinds = {kind.subject: kind for kind in (RunStarted, *RECEIVED)}
    batches: RecordedBatches | None = None
    for envelope in read_log(log):
        if (kind := kinds.get(envelope.subject)) is None:
            continue
        message = envelope.open(kind)
        if isinstance(message, RunStarted):
            batches = RecordedBatches(msgspec.convert(message.recipe, Recipe), reward=rule)
        elif batches is not None:
            await batches.receive(envelope, message)
    assert batches is not None, "a log begins with its run"
    return Scored(batches.trajectories, side_of(batches)[1])


def compare(was: Scored, now: Scored, groups: set[str] | None = None) -> RewardLab:
    """Compare two rules on some groups of a log; None for all."""
    chosen = {
        place: trajectory
        for place, trajectory in was.trajectories.items()
        if groups is None or trajectory.group in groups
    }
    return compare_rewards(chosen, now.trajectories, was.advantages, now.advantages)


def measure_coverage(first: Path, second: Path, options: argparse.Namespace) -> dict[str, list[int]]:
    """Count, for each figure, the pairs whose interval holds that of the whole first and of the second run."""
    seen, other = ({name: score(log, rule) for name, rule in RULES.items()} for log in (first, second))
    random = np.random.default_rng(0)
    every = sorted({trajectory.group for trajectory in seen["correct"].trajectories.values()}, key=int)
    shuffled = random.permutation(every).tolist()
    every_pair = list(itertools.permutations(RULES, 2))
    pairs = [every_pair[place] for place in random.permutation(len(every_pair))[: options.pairs]]
    held = {name: [0, 0] for name in FIGURES}
    for number, (was, now) in enumerate(pairs):
        start = number * options.groups % max(1, len(shuffled) - options.groups + 1)
        lab = compare(seen[was], seen[now], set(shuffled[start : start + options.groups]))
        truths = [compare(run[was], run[now]) for run in (seen, other)]
        for name, (place, truth) in itertools.product(FIGURES, enumerate(truths)):
            held[name][place] += lab.figures[name].holds(truth.figures[name].value)
    return held


def measure_seconds(folder: Path, episodes: int) -> float:
    """CPU seconds of the command on a synthetic log."""
    log, rules = folder / "synthetic.log", folder / "rules.py"
    write_synthetic_log(log, episodes, batch_size=min(125, episodes // 8))
    rules.write_text(SCORED_BY, encoding="utf-8")
    before = _children_seconds()
    areal("what-if", str(log), f"reward={rules}:brief")
    return _children_seconds() - before


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def report(held: Mapping[str, Sequence[int]], seconds: float, options: argparse.Namespace) -> str:
    """Returns the table."""
    rows = [[FIGURES[name], *(f"{count} of {options.pairs}" for count in counts)] for name, counts in held.items()]
    lines = table(["intervals that hold the figure of", "all groups of the run", "a second run"], rows)
    return f"{lines}\n\n{options.episodes:,} episodes scored again in {seconds:.1f} s of CPU time"


def main() -> None:
    """Measure, print, and append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("pairs", 50), ("groups", 32), ("steps", 100), ("episodes", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--logs", type=Path, nargs=2, metavar="FILE", help="recorded logs, in place of two runs")
    parser.add_argument("settings", nargs="*", default=[])
    options = parse_arguments(parser, QUICK)
    with tempfile.TemporaryDirectory(prefix="areal-reward-lab-") as temporary:
        folder = Path(temporary)
        logs = options.logs or record_both(folder, options)
        held = measure_coverage(*logs, options)
        seconds = measure_seconds(folder, options.episodes)
    print(report(held, seconds, options))
    if not options.no_history:
        sizes = {name: getattr(options, name) for name in ("pairs", "groups", "steps", "episodes")}
        append("reward_lab", {**sizes, "held": held, "cpu_seconds": round(seconds, 1)})


if __name__ == "__main__":
    main()
