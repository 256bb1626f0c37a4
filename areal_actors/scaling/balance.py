"""Recommends a number of workers for each role, from the load of a run: pure functions.

The trainer should hardly wait, and no worker be idle. Where it waits, the role with work in its queue is short; without
any queue it is the engines, if most episodes are in a completion: each of fewer completions is decoded faster. Where it
does not wait, a role of which one worker less would still have room has one too many. In between, and wherever another
worker would not help, the number stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from areal_actors.core.values import Value
from areal_actors.messages import LoadMeasured, RoleLoad

ROLES = ("reward_worker", "inference_worker", "rollout_worker")
"""Roles in the order in which a shortage is looked for: the later in an episode first, since work waits before the role
that is short."""
SHORT, AMPLE = 0.1, 0.02
"""Shares of the time that the trainer waits: above the first a role is short, below the second one may be ample."""
QUEUED = 0.1
"""Waiting work, as a share of the slots, from which the slots are too few; at least half an item."""
BUSY_CPU = 0.85
"""CPU cores from which a process of Python counts as busy all the time."""
IN_COMPLETIONS = 0.5
"""Share of the running episodes in a completion from which the engines are what episodes wait for."""
FILLED = 0.8
"""Share of the slots that is to be in use after an increase."""
STILL_FILLED = 0.6
"""Share of the slots, cores or allowed episodes that may be in use after a decrease."""
MOST_GROWTH = 2.0
"""Largest factor of an increase: what a role is short of is only seen once it has grown."""


class Recommendation(Value):
    """Number of workers of a role."""

    role: str
    workers: int
    """Workers that serve now."""
    recommended: int
    reason: str
    """Cause, in one sentence."""

    def change(self) -> int:
        """Returns the number of workers to be added; negative: to be removed."""
        return self.recommended - self.workers


def mean_load(loads: Sequence[LoadMeasured]) -> LoadMeasured | None:
    """Returns the mean of the last loads that have the same workers, weighted by their lengths; None without any."""
    if not loads:
        return None
    last = loads[-1]
    same: list[LoadMeasured] = []
    for load in reversed(loads):
        if _workers(load) != _workers(last):
            break
        same.append(load)
    seconds = sum(load.seconds for load in same)

    def mean(values: Iterator[float]) -> float:
        return sum(value * load.seconds for value, load in zip(values, same, strict=True)) / seconds

    def means(name: str) -> dict[str, float]:
        tables: list[dict[str, float]] = [getattr(load, name) for load in same]
        keys = dict.fromkeys(key for table in tables for key in table)
        return {key: mean(table.get(key, 0.0) for table in tables) for key in keys}

    roles = {
        role: RoleLoad(
            workers=now.workers,
            slots=now.slots,
            busy=mean(load.roles[role].busy for load in same),
            waiting=mean(load.roles[role].waiting for load in same),
            cpu=mean(load.roles[role].cpu for load in same),
            cpu_waits=mean(load.roles[role].cpu_waits for load in same),
        )
        for role, now in last.roles.items()
    }
    return LoadMeasured(
        seconds=seconds,
        trainer_waits=mean(load.trainer_waits for load in same),
        episodes=mean(load.episodes for load in same),
        allowed=last.allowed,
        roles=roles,
        gateway_cpu=mean(load.gateway_cpu for load in same),
        engine_full=last.engine_full,
        calls=mean(load.calls for load in same),
        publishes=mean(load.publishes for load in same),
        bounds=means("bounds"),
        processes=means("processes"),
        run_cpu=mean(load.run_cpu for load in same),
        machine_cpu=mean(load.machine_cpu for load in same),
        cores=last.cores,
    )


def recommend(load: LoadMeasured) -> list[Recommendation]:
    """Returns the recommendation for each role that has workers, the role that is short most first."""
    roles = [role for role in ROLES if role in load.roles and load.roles[role].workers]
    waits = f"the trainer waits for batches in {load.trainer_waits:.0%} of the time"
    if load.trainer_waits <= AMPLE:
        return [_fewer(role, load, waits) for role in roles]
    if load.trainer_waits <= SHORT:
        return [_same(role, load, f"{waits}: the run is balanced") for role in roles]
    if load.gateway_cpu >= BUSY_CPU:
        why = f"{waits}, and the gateway uses {load.gateway_cpu:.2f} CPU cores of one process: more workers do not help"
        return [_same(role, load, why) for role in roles]
    shortages = [shortage for role in roles if (shortage := _shortage(role, load, waits)) is not None]
    if not shortages and "inference_worker" in roles:
        shortages = list(_slow_engines(load, waits))
    short = [missing.role for missing in shortages]
    rest = _unhelpful(load, waits) if not shortages else f"{waits}, but no work waits for it"
    return sorted(shortages, key=lambda one: -_queue(load.roles[one.role])) + [
        _same(role, load, rest) for role in roles if role not in short
    ]


def _shortage(role: str, load: LoadMeasured, waits: str) -> Recommendation | None:
    """Returns more workers for a role with work in its queue, or with a busy interpreter; None if it has room."""
    now = load.roles[role]
    growth = _growth(load)
    if now.waiting >= max(QUEUED * now.slots, 0.5):
        each = now.slots / now.workers
        wanted = min((now.busy + now.waiting) / each, now.workers * growth / FILLED, now.workers * MOST_GROWTH)
        queue = f"{now.waiting:.1f} {WORK[role]} wait for one of {now.slots} slots"
        return _more(role, now, wanted, f"{waits}, and {queue}")
    if role == "inference_worker" and load.engine_full:
        return _more(role, now, now.workers * growth, f"{waits}, and the KV cache of an engine is full")
    if role == "rollout_worker" and now.cpu >= BUSY_CPU:
        return _more(role, now, now.workers * growth, f"{waits}, and agents use {now.cpu:.2f} CPU cores of one process")
    return None


def _slow_engines(load: LoadMeasured, waits: str) -> Iterator[Recommendation]:
    """Yield more engines if most running episodes are in a completion."""
    now = load.roles["inference_worker"]
    if load.episodes >= max(QUEUED * load.allowed, 1) and now.busy / load.episodes >= IN_COMPLETIONS:
        why = f"{waits}, and {now.busy:.1f} of {load.episodes:.1f} running episodes are in a completion"
        yield _more("inference_worker", now, now.workers * _growth(load), why)


def _unhelpful(load: LoadMeasured, waits: str) -> str:
    """Returns why no role gets more workers."""
    if load.episodes >= QUEUED * load.allowed:
        return (
            f"{waits}, but episodes spend it in their agents, not in queues: raise staleness_gate.max_concurrent or"
            " max_staleness"
        )
    return f"{waits}, but few episodes may run: a bound of the staleness gate is reached"


def _fewer(role: str, load: LoadMeasured, waits: str) -> Recommendation:
    """Returns one worker less if the others have room for its work."""
    now = load.roles[role]
    if now.workers == 1:
        return _same(role, load, f"{waits}: no more workers are needed")
    left = (now.workers - 1) / now.workers
    if role == "inference_worker":
        used = load.episodes / load.allowed / left if load.allowed else 1.0
        what = f"{load.episodes:.1f} of {load.allowed} allowed episodes run"
    else:
        used = max((now.busy + now.waiting) / now.slots, now.cpu) / left
        what = f"{now.busy:.1f} of {now.slots} slots are in use"
    if used > STILL_FILLED:
        return _same(role, load, f"{waits}, and {what}: the run is balanced")
    return Recommendation(
        role=role, workers=now.workers, recommended=now.workers - 1, reason=f"{waits}, and only {what}"
    )


WORK = {"reward_worker": "scores", "inference_worker": "completions", "rollout_worker": "episodes"}


def _growth(load: LoadMeasured) -> float:
    """Returns the factor by which batches would have to come faster, limited."""
    return min(1 / max(1 - load.trainer_waits, 0.01), MOST_GROWTH)


def _more(role: str, now: RoleLoad, wanted: float, reason: str) -> Recommendation:
    recommended = max(math.ceil(wanted - 1e-9), now.workers + 1)
    return Recommendation(role=role, workers=now.workers, recommended=recommended, reason=reason)


def _same(role: str, load: LoadMeasured, reason: str) -> Recommendation:
    workers = load.roles[role].workers
    return Recommendation(role=role, workers=workers, recommended=workers, reason=reason)


def _queue(now: RoleLoad) -> float:
    return now.waiting / max(now.slots, 1)


def _workers(load: LoadMeasured) -> dict[str, int]:
    return {role: role_load.workers for role, role_load in load.roles.items()}
