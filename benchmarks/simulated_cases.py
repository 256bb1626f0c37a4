"""Cases of `async_vs_sync.py --simulated`.

Spreads of answers, staleness bounds, exit policies and limits, each beside the ideal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from history import ROOT
from simulated_hardware import Machine, ideal_seconds
from simulated_run import Outcome, SimulatedRun

from areal_actors.core.devices import pretended_cuda
from areal_actors.recipe.limits import limits
from areal_actors.recipe.load import load

RECIPE = ROOT / "recipes" / "gsm8k_grpo.toml"
DEVICES = pretended_cuda("2x80")
LIMITS: dict[str, tuple[str, ...]] = {
    "64 episodes a rollout worker": ("actors.rollout_worker.concurrency=64",),
    "128 slots": ("generation.max_num_seqs=128",),
    "no surplus at the end": ("staleness_gate.surplus_groups=0",),
    "default": (),
}


class Case(msgspec.Struct, frozen=True):
    """A simulated run beside the ideal and the synchronous run."""

    sigma: float
    max_staleness: int
    exit_policy: str
    limits: str
    lowest_limit: int
    """Episodes that may be under way at once."""
    ideal_share: float
    """Seconds of the ideal divided by those of the run."""
    sync_multiple: float
    """Seconds of the synchronous run divided by those of the run."""
    outcome: Outcome


def run(sigma: float, bound: int, policy: str, steps: int, seed: int, limited: str = "default") -> Case:
    """Simulate the main recipe on two GPUs, with default limits but for those of `LIMITS`.

    Raises:
        SystemExit: a token was trained that is older than the bound.
    """
    words = [
        "profile=cuda",
        f"steps={steps}",
        f"staleness_gate.max_staleness={bound}",
        f"batcher.exit_policy={policy}",
        *LIMITS[limited],
    ]
    recipe = load([RECIPE], words, DEVICES).recipe
    simulated = SimulatedRun(recipe, Machine(), sigma, seed)
    outcome = simulated.outcome()
    if outcome.oldest > bound:
        raise SystemExit(
            f"sigma {sigma}, {policy}: a token {outcome.oldest} versions old was trained under a bound of {bound}"
        )
    ideal = ideal_seconds(simulated.machine, simulated.work())
    lowest = min(limits(recipe), key=lambda limit: limit.episodes).episodes
    return Case(sigma, bound, policy, limited, lowest, round(ideal / outcome.seconds, 4), 1.0, outcome)


def cases(
    sigmas: Sequence[float], bounds: Sequence[int], policies: Sequence[str], steps: int, seed: int
) -> Iterator[Case]:
    """Simulate every combination; synchronous training is the same under every policy."""
    for sigma in sigmas:
        synchronous = run(sigma, 0, "mask", steps, seed)
        for bound in bounds:
            for policy in policies if bound else ():
                case = run(sigma, bound, policy, steps, seed)
                yield msgspec.structs.replace(
                    case, sync_multiple=round(synchronous.outcome.seconds / case.outcome.seconds, 3)
                )
            if not bound:
                yield synchronous


def limited_cases(sigma: float, bound: int, steps: int, seed: int) -> Iterator[Case]:
    """Simulate a run with each of `LIMITS`."""
    return (run(sigma, bound, "mask", steps, seed, name) for name in LIMITS)


HEADER = ["sigma", "eta", "policy", "of the ideal", "trainer busy", "x sync", "masked", "dropped", "oldest trained"]


def row(case: Case) -> list[object]:
    """Figures of a case."""
    outcome = case.outcome
    shares = [f"{share:.1%}" for share in (case.ideal_share, outcome.trainer_busy)]
    lost = [f"{share:.1%}" for share in (outcome.masked, outcome.dropped)]
    return [str(case.sigma), case.max_staleness, case.exit_policy, *shares, case.sync_multiple, *lost, outcome.oldest]


LIMITS_HEADER = ["limits", "episodes at once", "of the ideal", "trainer busy"]


def limits_row(case: Case) -> list[object]:
    """Figures of a case with its limits."""
    return [case.limits, case.lowest_limit, f"{case.ideal_share:.1%}", f"{case.outcome.trainer_busy:.1%}"]
