"""Asynchronous against synchronous training on the embedded recipe: same work, same number of episodes in flight.

    python benchmarks/async_vs_sync.py [--steps 24] [--seeds 0 1 2] [--latency none simulated]
    python benchmarks/async_vs_sync.py --simulated [--sigmas 0.6 0.8 1.0] [--bounds 0 1 2 4 8] [--policies mask drop
    wait]

Each pair of runs differs in `staleness_gate.max_staleness` alone: 0 waits for the new weights before the next groups
start, 2 does not. Model (warm-started once), seed, evaluation and the limit in flight (one batch of groups) are the
same; the two take turns. `none` runs `agents/gsm8k.py`; `simulated` adds a tool that sleeps, see `slow_tool_agent.py`.
Three figures, all counted from the moment at which the first groups may start: seconds for all steps; seconds until
sampled accuracy on held-out tasks reaches a fixed one; and the share of training time during which generation was busy
too.

With `--simulated` nothing is trained: the real actors run in virtual time around a simulated machine
(`simulated_run.py`), with the default limits of the main recipe on two GPUs and answers of log-normal length, beside
the best that the machine can do under the staleness bound (`simulated_hardware.ideal_seconds`). The figures are those
of a seed, exactly, on any computer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import simulated_cases
from history import ROOT, SMALL, append, busy_seconds, others_share, parse_arguments, table

from areal_actors.display.summary import read_throughputs
from areal_actors.display.throughput import overlap_share
from areal_actors.embedded.embedded_model import make_embedded_model
from areal_actors.embedded.settings import WarmStart
from areal_actors.messages import EvaluationCompleted, StepCompleted

AGENTS = {"none": "agents/gsm8k.py:Gsm8kAgent", "simulated": "benchmarks/slow_tool_agent.py:SlowToolAgent"}
STALENESS = {"sync": 0, "async": 2}
BATCH_GROUPS = 16
LONGEST_SECONDS = 600.0
DISTURBED = 0.08
"""A pair is repeated if other processes used more than this share of the CPU."""
TRIES = 3
QUICK = {
    "steps": 2,
    "seeds": [0],
    "latency": ["none"],
    "warm_start": 10,
    "tries": 1,
    "settings": list(SMALL),
    "sigmas": [0.8],
    "bounds": [0, 2],
    "policies": ["mask"],
}
OUTPUT_TAIL_CHARACTERS = 4000
"""Characters of a failed run's output that are shown."""


@dataclass(frozen=True)
class Outcome:
    """Times and accuracy of one run; nan for values that it did not reach."""

    seconds: float
    """From the first grant to the last step."""
    seconds_to_accuracy: float
    overlap: float
    accuracy: float
    """At the end."""
    others: float
    """Share of the machine's CPU used by other processes."""


@dataclass(frozen=True)
class Pair:
    """Two runs that differ in the bound on staleness alone."""

    latency: str
    seed: int
    synchronous: Outcome
    asynchronous: Outcome


def settings(
    mode: str, latency: str, seed: int, steps: int, model: str, folder: Path, over: Sequence[str]
) -> list[str]:
    """The recipe's settings of one run; `over` overrides all but the compared ones."""
    return [
        "profile=embedded",
        f"staleness_gate.max_concurrent={BATCH_GROUPS}",
        f"trainer.batch_size={BATCH_GROUPS}",
        "generation.max_model_len=256",
        "evaluation.tasks=100",
        "evaluation.every_steps=4",
        "evaluation.periodic_exact=false",
        *over,
        f"run={mode}",
        f"folder={folder}",
        f"model={model}",
        f"seed={seed}",
        f"steps={steps}",
        f"task.agent={AGENTS[latency]}",
        f"staleness_gate.max_staleness={STALENESS[mode]}",
    ]


def run(mode: str, latency: str, seed: int, steps: int, model: str, threshold: float, over: Sequence[str]) -> Outcome:
    """Run the command line once."""
    with tempfile.TemporaryDirectory() as temporary:
        words = settings(mode, latency, seed, steps, model, Path(temporary), over)
        output = Path(temporary) / "output.txt"
        command = [sys.executable, "-m", "areal_actors", "run", "recipes/gsm8k_grpo.toml", *words]
        began, busy, own = time.perf_counter(), busy_seconds(), _childrens_seconds()
        with output.open("wb") as file:
            ended = subprocess.run(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=LONGEST_SECONDS,
                check=False,
            )
        if ended.returncode:
            raise SystemExit(f"the {mode} run failed:\n{output.read_text(errors='replace')[-OUTPUT_TAIL_CHARACTERS:]}")
        others = others_share(busy_seconds() - busy, _childrens_seconds() - own, time.perf_counter() - began)
        return outcome(Path(temporary) / mode / "metrics.jsonl", steps, threshold, others)


def _childrens_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def outcome(metrics: Path, steps: int, threshold: float, others: float) -> Outcome:
    """Read the metrics of a run."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    evaluated = [line for line in lines if line["kind"] == EvaluationCompleted.subject]
    opened = evaluated[0]["time"]
    made = {0: opened, **{line["step"]: line["time"] for line in lines if line["kind"] == StepCompleted.subject}}
    curve = [
        (made[line["weight_version"]] - opened, line["accuracy"]) for line in evaluated if line["mode"] == "sampled"
    ]
    curve.sort()
    training = [one for one in read_throughputs(metrics) if opened <= one.started <= made[steps]]
    return Outcome(
        seconds=made[steps] - opened,
        seconds_to_accuracy=reached(curve, threshold),
        overlap=overlap_share(training),
        accuracy=curve[-1][1],
        others=others,
    )


def reached(curve: Sequence[tuple[float, float]], threshold: float) -> float:
    """Time at which a curve of (seconds, accuracy) first reaches the threshold, interpolated between evaluations."""
    for (before, low), (after, high) in pairwise(curve):
        if high >= threshold:
            return before + (after - before) * max(threshold - low, 0.0) / max(high - low, 1e-9)
    return float("nan")


def compare(latency: str, options: argparse.Namespace, model: str) -> list[Pair]:
    """A pair of runs for every seed, alternating; a pair disturbed by other load is repeated."""
    pairs = []
    for number, seed in enumerate(options.seeds):
        modes = list(STALENESS) if number % 2 == 0 else list(STALENESS)[::-1]
        for _ in range(options.tries):
            found = {
                mode: run(mode, latency, seed, options.steps, model, options.accuracy, options.settings)
                for mode in modes
            }
            print(
                f"tool latency {latency}, seed {seed}: "
                + "; ".join(f"{mode} {shown(found[mode])}" for mode in STALENESS),
                flush=True,
            )
            if max(one.others for one in found.values()) <= DISTURBED:
                break
        pairs.append(Pair(latency, seed, found["sync"], found["async"]))
    return pairs


def shown(one: Outcome) -> str:
    """A run on one line."""
    took = f"{one.seconds:.1f} s, {one.seconds_to_accuracy:.1f} s to accuracy"
    return f"{took}, overlap {one.overlap:.0%}, final {one.accuracy:.2f}, others' CPU {one.others:.0%}"


def row(latency: str, pairs: Sequence[Pair]) -> list[object]:
    """Medians over the seeds; a ratio is the median of the pairs' own ratios."""
    sync, asynchronous = [pair.synchronous for pair in pairs], [pair.asynchronous for pair in pairs]
    return [
        latency,
        median(one.seconds for one in sync),
        median(one.seconds for one in asynchronous),
        median(pair.synchronous.seconds / pair.asynchronous.seconds for pair in pairs),
        median(one.seconds_to_accuracy for one in sync),
        median(one.seconds_to_accuracy for one in asynchronous),
        median(pair.synchronous.seconds_to_accuracy / pair.asynchronous.seconds_to_accuracy for pair in pairs),
        f"{median(one.overlap for one in sync):.0%}",
        f"{median(one.overlap for one in asynchronous):.0%}",
        f"{max(one.others for one in sync + asynchronous):.0%}",
    ]


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate, print, append to the history."""
    steps, seed = arguments.steps, arguments.seeds[0]
    found = []
    for case in simulated_cases.cases(arguments.sigmas, arguments.bounds, arguments.policies, steps, seed):
        print(*simulated_cases.row(case), flush=True)
        found.append(case)
    limited = list(simulated_cases.limited_cases(arguments.sigmas[-1], max(arguments.bounds[:3]), steps, seed))
    print(f"\n{table(simulated_cases.HEADER, [simulated_cases.row(case) for case in found])}")
    print(f"\n{table(simulated_cases.LIMITS_HEADER, [simulated_cases.limits_row(case) for case in limited])}")
    if not arguments.no_history:
        machine = msgspec.to_builtins(simulated_cases.Machine())
        what = {"simulated": True, "steps": steps, "seed": seed, "simulated_machine": machine}
        append("async_vs_sync", {**what, "cases": msgspec.to_builtins([*found, *limited])})


def main() -> None:
    """Warm-start one model, run all pairs, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one pair of runs each")
    parser.add_argument(
        "--latency", nargs="+", choices=sorted(AGENTS), default=["none", "simulated"], help="of the agent's tool"
    )
    parser.add_argument("--accuracy", type=float, default=0.7, help="the held-out sampled accuracy to reach")
    parser.add_argument("--tries", type=int, default=TRIES, help="for a pair disturbed by other load")
    parser.add_argument(
        "--warm-start", type=int, default=WarmStart().steps, metavar="STEPS", help="of the common initial model"
    )
    parser.add_argument("settings", nargs="*", default=[], metavar="KEY=VALUE", help="laid over both")
    parser.add_argument("--simulated", action="store_true", help="the real actors in virtual time, beside the ideal")
    parser.add_argument(
        "--sigmas", type=float, nargs="+", default=[0.6, 0.8, 1.0], help="of the simulated answers' lengths"
    )
    parser.add_argument(
        "--bounds", type=int, nargs="+", default=[0, 1, 2, 4, 8], help="staleness_gate.max_staleness of simulated runs"
    )
    parser.add_argument(
        "--policies", nargs="+", default=["mask", "drop", "wait"], help="batcher.exit_policy of simulated runs"
    )
    arguments = parse_arguments(parser, QUICK)
    if arguments.simulated:
        simulate(arguments)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as temporary:
        model = f"{temporary}/model"
        make_embedded_model(model, WarmStart(steps=arguments.warm_start), 0, 1, lambda *_: None)
        pairs = {latency: compare(latency, arguments, model) for latency in arguments.latency}
    goal = f"s to {arguments.accuracy:g}"
    header = [
        "tool latency",
        "sync s",
        "async s",
        "ratio",
        f"sync {goal}",
        f"async {goal}",
        "ratio",
        "sync overlap",
        "async overlap",
        "others' CPU",
    ]
    print()
    print(table(header, [row(latency, of_latency) for latency, of_latency in pairs.items()]))
    if not arguments.no_history:
        what = {
            "steps": arguments.steps,
            "accuracy": arguments.accuracy,
            "staleness": STALENESS,
            "groups_in_flight": BATCH_GROUPS,
        }
        append(
            "async_vs_sync", {**what, "pairs": [asdict(pair) for of_latency in pairs.values() for pair in of_latency]}
        )


if __name__ == "__main__":
    main()
