"""Utilization of the trainer with derived and with configured limits, alternating on the same recipe.

    PYTHONPATH=benchmarks python benchmarks/archive/limits.py [--steps 12] [--repeats 3]
        [--token-seconds 0.05] [KEY=VALUE ...]

All components are real except the engine, which is scripted: it yields a random token every `--token-seconds`
(simulated), like an engine on a separate machine. The recipe's gate allows 48 groups of 8 episodes at once. `derived`
derives all other limits from that; `stated` has 64 episodes per rollout worker, independent of the gate. The share is
of the time from the trainer's first step to its last.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from history import ROOT, SMALL, append, busy_seconds, others_share, parse_arguments, table

from areal_actors.core.devices import CudaDevices
from areal_actors.display.summary import read_throughputs
from areal_actors.display.throughput import busy_while_training
from areal_actors.recipe.limits import lowest_limit
from areal_actors.recipe.load import load

RECIPE = ROOT / "recipes" / "gsm8k_grpo.toml"
LIMITS = {"stated": ("actors.rollout_worker.concurrency=64",), "derived": ()}
QUICK = {"steps": 2, "repeats": 1, "token_seconds": 0.001, "settings": list(SMALL)}
LONGEST_SECONDS = 900.0
OUTPUT_TAIL_CHARACTERS = 4000
"""Characters of a failed run's output that are shown."""


def words(steps: int, token_seconds: float, over: Sequence[str]) -> list[str]:
    """Settings of all runs."""
    return [
        "profile=embedded",
        "warm_start.steps=20",
        "warm_start.tail_steps=0",
        "evaluation.tasks=0",
        "generation.engine=scripted",
        "generation.scripted.shortest=16",
        "generation.scripted.longest=48",
        f"generation.scripted.token_seconds={token_seconds}",
        "watchdog.engine_mismatch=off",
        "trainer.logprob_check_sequences=0",
        f"steps={steps}",
        *over,
    ]


def run(name: str, settings: Sequence[str]) -> dict[str, Any]:
    """Run the command line once; returns trainer utilization, seconds per step and the tightest limit."""
    resolved = load([RECIPE], [*settings, *LIMITS[name]], CudaDevices(0, "not asked"))
    with tempfile.TemporaryDirectory() as temporary:
        command = [
            sys.executable,
            "-m",
            "areal_actors",
            "run",
            str(RECIPE),
            f"run={name}",
            f"folder={temporary}",
            *settings,
            *LIMITS[name],
        ]
        began, busy, own = time.perf_counter(), busy_seconds(), sum(os.times()[2:4])
        ended = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
        if ended.returncode:
            raise SystemExit(
                f"the run with {name} limits failed:\n{(ended.stdout + ended.stderr)[-OUTPUT_TAIL_CHARACTERS:]}"
            )
        others = others_share(busy_seconds() - busy, sum(os.times()[2:4]) - own, time.perf_counter() - began)
        throughputs = read_throughputs(Path(temporary) / name / "metrics.jsonl")
    training = [one for one in throughputs if one.side == "training"]
    seconds = max(one.started + one.seconds for one in training) - min(one.started for one in training)
    return {
        "limits": name,
        "trainer_busy": round(busy_while_training(throughputs), 3),
        "seconds_a_step": round(seconds / len(training), 3),
        "others": round(others, 3),
        "binds": lowest_limit(resolved.recipe).partition(";")[0],
    }


def main() -> None:
    """Measure alternating, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3, help="number of alternations")
    parser.add_argument("--token-seconds", type=float, default=0.05, help="of the scripted engine")
    parser.add_argument("settings", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all runs")
    options = parse_arguments(parser, QUICK)
    settings = words(options.steps, options.token_seconds, options.settings)
    runs = [run(name, settings) for _ in range(options.repeats) for name in LIMITS]
    cases = {name: [one for one in runs if one["limits"] == name] for name in LIMITS}
    header = ["limits", "trainer busy", "s a step", "others' CPU", "tightest limit"]
    rows = []
    for name, found in cases.items():
        shares, seconds = (median(one[key] for one in found) for key in ("trainer_busy", "seconds_a_step"))
        rows.append([name, f"{shares:.0%}", seconds, f"{max(one['others'] for one in found):.0%}", found[0]["binds"]])
    print(table(header, rows))
    if not options.no_history:
        append("limits", {"steps": options.steps, "token_seconds": options.token_seconds, "runs": runs})


if __name__ == "__main__":
    main()
