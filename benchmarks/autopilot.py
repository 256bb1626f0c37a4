"""Runs that choose their limits themselves (`[autopilot]`), from random ones on random machines, in virtual time.

    python benchmarks/autopilot.py [--machines N] [--quick] [--no-history]

Each machine has a random speed of decoding and of steps, random lengths of answers and a random batch. A run begins
with a random staleness bound and a random number of groups at once. Its trainer's busy share in the windows after the
fifth is divided by that of the best of fixed limits on the same machine; so is that of a run which keeps its first
limits. The actors are the real ones; `simulated_run.py` describes the machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
from typing import Any, NamedTuple

from history import append, parse_arguments, table
from simulated_cases import DEVICES, RECIPE
from simulated_hardware import Machine
from simulated_scaling import ScaledRun

from areal_actors.core.autoscale_settings import AutoscaleSettings
from areal_actors.messages import LoadMeasured
from areal_actors.recipe.load import load

MOST_STALENESS, MOST_CONCURRENT = 4, 64
FIXED = tuple(itertools.product((1, 2, MOST_STALENESS), (8, 16, MOST_CONCURRENT)))
"""Staleness bounds and groups at once that the best is found among."""
WINDOW_SECONDS = 15.0
"""Length of a window, the default."""
SETTLED = 5
"""Windows after which a run is judged."""


class Case(NamedTuple):
    """A machine, its work, and the limits that a run begins with."""

    machine: Machine
    sigma: float
    batch_size: int
    staleness: int
    concurrent: int


def draw_case(seed: int) -> Case:
    """Draw a machine and first limits."""
    dice = random.Random(f"autopilot {seed}")

    def between(lowest: float, highest: float) -> float:
        return math.exp(dice.uniform(math.log(lowest), math.log(highest)))

    machine = Machine(
        token_seconds=between(0.004, 0.03), slot_seconds=between(1e-5, 3e-4), step_seconds=between(0.5, 3.0)
    )
    batch = dice.choice((4, 8))
    return Case(machine, dice.uniform(0.2, 1.2), batch, dice.choice((0, 1, 2)), dice.choice((1, 2)) * batch)


def simulate(case: Case, steps: int, *words: str) -> ScaledRun:
    """Run the main recipe with these settings on the machine; returns the run, with its loads and decisions."""
    sizes = (f"trainer.batch_size={case.batch_size}", "algorithm.group_size=4", f"steps={steps}")
    recipe = load([RECIPE], ["profile=cuda", *sizes, *words], DEVICES).recipe
    settings = AutoscaleSettings(window_seconds=WINDOW_SECONDS)
    run = ScaledRun(recipe, case.machine, case.sigma, 1, autoscale=settings)
    run.outcome()
    return run


def limit_words(staleness: int, concurrent: int) -> tuple[str, str]:
    """Words that fix both limits."""
    return f"staleness_gate.max_staleness={staleness}", f"staleness_gate.max_concurrent={concurrent}"


def busy_share(loads: list[LoadMeasured]) -> float:
    """Share of the time in which the trainer was busy."""
    seconds = sum(load.seconds for load in loads)
    return sum((1 - load.trainer_waits) * load.seconds for load in loads) / seconds


def measure(case: Case) -> dict[str, Any]:
    """Measure the run that chooses, the one that keeps its first limits, and the best of the fixed ones."""
    fixed = {limits: busy_share(simulate(case, 40, *limit_words(*limits)).loads[1:]) for limits in FIXED}
    best = max(fixed, key=lambda limits: fixed[limits])
    first = busy_share(simulate(case, 40, *limit_words(case.staleness, case.concurrent)).loads[1:])
    chooses = ("autopilot.enabled=true", f"autopilot.min_staleness={case.staleness}")
    words = (*limit_words(MOST_STALENESS, MOST_CONCURRENT), *chooses, f"autopilot.min_concurrent={case.concurrent}")
    run = simulate(case, math.ceil((SETTLED + 3) * WINDOW_SECONDS / case.machine.step_seconds), *words)
    return {
        "best": best,
        "busy": round(fixed[best], 4),
        "first_share": round(first / fixed[best], 4),
        "share": round(busy_share(run.loads[SETTLED:]) / fixed[best], 4),
        "decisions": len(run.limits),
        "taken_back": sum(decision.value < decision.before for decision in run.limits),
    }


def main() -> int:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=50, help="how many are drawn (default: 50)")
    arguments = parse_arguments(parser, {"machines": 1})
    cases = [measure(draw_case(seed)) for seed in range(arguments.machines)]
    rows = []
    for name in ("first_share", "share"):
        shares = sorted(case[name] for case in cases)
        tenth = shares[len(shares) // 10]
        rows.append((name, statistics.median(shares), tenth, shares[0], sum(share >= 0.9 for share in shares)))
    print(table(("share of the best", "median", "lowest tenth", "lowest", "at least .9"), rows))
    changes = statistics.mean(case["decisions"] for case in cases)
    print(f"{len(cases)} machines; {changes:.1f} changes a run, {sum(case['taken_back'] for case in cases)} taken back")
    if not arguments.no_history:
        append("autopilot", {"machines": len(cases), "cases": cases})
    return 0


if __name__ == "__main__":
    sys.exit(main())
