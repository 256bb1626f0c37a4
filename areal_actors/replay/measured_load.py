"""The measured load of a run, and the sessions of a served model, as lines of `areal-actors why`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from areal_actors.core.command import COMMAND
from areal_actors.display.waiting import BOUNDS
from areal_actors.messages import LoadMeasured
from areal_actors.reader.run import Run
from areal_actors.scaling.limit import cpu_of_parties, share_episodes

SESSIONS = "SELECT count(*), sum(outcome IN ('exported', 'dropped')) FROM attempt WHERE ended IS NOT NULL"


class LimitVerdict(NamedTuple):
    """The limit of a run, or the state of a served model."""

    sentence: str
    advice: tuple[str, ...] = ()
    further: tuple[str, ...] = ()


def measured_lines(load: LoadMeasured) -> list[str]:
    """Returns the figures of the verdict, all of one interval."""
    return [f"{label:<12}{text}" for label, text in _list_figures(load)]


def _list_figures(load: LoadMeasured) -> Iterator[tuple[str, str]]:
    shares = {
        "trains": 1.0 - load.trainer_waits - load.publishes,
        "waits for batches": load.trainer_waits,
        "publishes weights": load.publishes,
    }
    yield "trainer", _in_percent(shares)
    if load.bounds:
        bounds = {BOUNDS.get(name, name).partition(" (")[0]: share for name, share in load.bounds.items()}
        yield "gate", f"while the trainer waits: {_in_percent(bounds)}"
    in_calls, in_rewards, in_agents = share_episodes(load)
    stages = {"in model calls": in_calls, "in the agent": in_agents, "in rewards": in_rewards}
    yield "episodes", f"{load.episodes:.1f} of {load.allowed} allowed at once: {_in_percent(stages)}"
    if load.cores:
        parties = {name: cores for name, cores in cpu_of_parties(load).items() if cores >= 0.005}
        used = ", ".join(f"{name} {cores:.2f}" for name, cores in sorted(parties.items(), key=lambda item: -item[1]))
        rest = max(load.run_cpu - sum(parties.values()), 0.0)
        outside = max(load.machine_cpu - load.run_cpu, 0.0)
        yield (
            "CPU cores",
            f"{load.machine_cpu:.2f} of {load.cores}: {used}, rest of the run {rest:.2f}, other programs {outside:.2f}",
        )


def _in_percent(shares: Mapping[str, float]) -> str:
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ordered if share >= 0.005) or "nothing on record"


def describe_served(run: Run) -> LimitVerdict:
    """Returns the sentence about a served model, which trains nothing, and what to do with its log."""
    ended, rewarded = next(iter(run.history.query(SESSIONS)))
    sentence = f"This model is served, and trains nothing: {ended} sessions have ended, {rewarded or 0} with a reward."
    return LimitVerdict(sentence, (f"`{COMMAND} learn {run.name}` learns from those that were judged",))
