"""The sequential test of a candidate: sessions until it decides, and false decisions, over simulated trials.

    python benchmarks/canary.py [--trials 1000] [--longest 80000] [--seed 0]

Each trial has independent sessions of two versions with rewards between 0 and 1: `binary` (0 or 1, mean 0.5) or
`graded` (mean 0.5, standard deviation 0.2). The candidate's mean differs by a planted amount, -0.03, 0 or +0.03, or by
just `least_difference` (-0.01), the hardest one that may not be promoted. Sessions are those of both versions together;
a promotion is false at -0.03 and -0.01, a rollback at 0 and +0.03. Assignment, pairs and limits are those of
`areal_actors/canary`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from history import append, parse_arguments, table

from areal_actors.canary.comparison import block_sizes
from areal_actors.canary.sequential_test import DifferenceTest
from areal_actors.core.candidate_settings import CandidateSettings

SETTINGS = CandidateSettings()
PLANTED = (-0.03, SETTINGS.least_difference, 0.0, 0.03)
SHARES = (0.5, 0.1)
KINDS = ("binary", "graded")
MEAN, GRADED_DEVIATION = 0.5, 0.2
QUICK = {"trials": 20, "longest": 400}
Floats = npt.NDArray[np.float64]


def draw_rewards(random: np.random.Generator, kind: str, mean: float, shape: tuple[int, ...]) -> Floats:
    """Returns rewards of sessions with a mean."""
    if kind == "binary":
        return (random.random(shape) < mean).astype(np.float64)
    spread = mean * (1 - mean) / GRADED_DEVIATION**2 - 1
    return random.beta(mean * spread, (1 - mean) * spread, shape)


def simulate(kind: str, share: float, planted: float, trials: int, longest: int, seed: int) -> dict[str, Any]:
    """Returns decisions and sessions of independent trials, each of which ends after `longest` sessions."""
    random = np.random.default_rng([seed, int(share * 100), int((planted + 1) * 10_000), KINDS.index(kind)])
    served, own = block_sizes(share)
    size = served + own
    thresholds = np.array([SETTINGS.least_difference, 0.0])
    test = DifferenceTest(thresholds, SETTINGS.significance, (trials,))
    sessions: Floats = np.full(trials, np.inf)
    promoted = np.zeros(trials, dtype=bool)
    under_way = np.arange(trials)
    for pair in range(1, longest // size + 1):
        shape = len(under_way)
        ours = draw_rewards(random, kind, MEAN, (shape, served)).mean(axis=1)
        its = draw_rewards(random, kind, MEAN + planted, (shape, own)).mean(axis=1)
        test.add(its - ours)
        if pair * min(served, own) < SETTINGS.least_sessions:
            continue
        worse, as_good = test.upper() <= 0.0, test.lower() >= SETTINGS.least_difference
        decided = worse | as_good
        if decided.any():
            sessions[under_way[decided]] = pair * size
            promoted[under_way[decided]] = ~worse[decided]
            under_way = under_way[~decided]
            test.wealth, test.highest = test.wealth[:, ~decided], test.highest[:, ~decided]
            test.sum, test.squares = test.sum[~decided], test.squares[~decided]
        if not len(under_way):
            break
    is_decided = np.isfinite(sessions)
    rolled_back = is_decided & ~promoted
    false = promoted if planted <= SETTINGS.least_difference else rolled_back
    return {
        "rewards": kind,
        "share": share,
        "planted": planted,
        "promoted": float(promoted.mean()),
        "rolled_back": float(rolled_back.mean()),
        "false": float(false.mean()),
        "median": float(np.quantile(sessions, 0.5, method="higher")),
        "p90": float(np.quantile(sessions, 0.9, method="higher")),
    }


def main() -> None:
    """Print the table, and append it to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--longest", type=int, default=80_000, help="sessions of a trial")
    parser.add_argument("--seed", type=int, default=0)
    options = parse_arguments(parser, QUICK)
    began = time.perf_counter()
    rows = [
        simulate(kind, share, planted, options.trials, options.longest, options.seed)
        for kind in KINDS
        for share in SHARES
        for planted in PLANTED
    ]
    columns = ("rewards", "share", "planted", "promoted", "rolled back", "false", "median", "p90")
    print(table(columns, [_cells(row) for row in rows]))
    worst = max(row["false"] for row in rows)
    print(f"{options.trials} trials each, {time.perf_counter() - began:.0f} s; false decisions at most {worst:.1%}")
    if not options.no_history:
        append("canary", {"trials": options.trials, "false": worst, "rows": rows})


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    shares = [f"{row[name]:.1%}" for name in ("promoted", "rolled_back", "false")]
    sessions = [f"{row[name]:,.0f}" if np.isfinite(row[name]) else "never" for name in ("median", "p90")]
    return (row["rewards"], f"{row['share']:g}", f"{row['planted']:+g}", *shares, *sessions)


if __name__ == "__main__":
    main()
