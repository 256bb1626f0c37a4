"""Validates `[autoscale]` and `[autopilot]`.

Bounds that agree with each other and with the workers of the run, and leave room for others.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from areal_actors.core.autopilot_settings import AutopilotSettings
from areal_actors.core.autoscale_settings import AutoscaleSettings, WorkerBounds
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems
from areal_actors.core.run_facts import RunFacts
from areal_actors.recipe.recipe import Recipe


def find_problems(recipe: Recipe, facts: RunFacts) -> Problems:
    """Yields what keeps the number of workers from being decided on."""
    if facts.is_serving:
        return
    yield from _autopilot_problems(recipe, facts)
    scaled, enabled = recipe.autoscale, ("autoscale", "enabled")
    placements, hosts = msgspec.structs.asdict(recipe.actors), recipe.hosts.joined_hosts()
    bounds: dict[str, WorkerBounds] = {
        name: role_bounds
        for name, role_bounds in msgspec.structs.asdict(scaled).items()
        if isinstance(role_bounds, WorkerBounds)
    }
    for role, one in bounds.items():
        own = placements[role].count
        if one.max < one.min:
            yield (
                ("autoscale", role, "max"),
                f"found {one.max}, but autoscale.{role}.min = {one.min}; write {one.min} or more",
            )
        elif one.max and role in facts.absent:
            yield ("autoscale", role, "max"), f"found {one.max}, but this run has no {role}; write 0"
        elif role in hosts and 0 < one.max < (listed := hosts[role].count * hosts[role].workers):
            started = f"hosts.{role} starts {listed}: count × workers"
            yield ("autoscale", role, "max"), f"found {one.max}, but {started}; write {listed} or more, or 0"
        elif 0 < one.max < own:
            yield (
                ("autoscale", role, "max"),
                f"found {one.max}, but actors.{role}.count = {own}; write {own} or more, or 0",
            )
    if scaled.enabled and (facts.is_online or facts.learns_from_examples):
        yield enabled, "found true, but the load of a run without agents of its own is not measured; write false"
    elif scaled.enabled and not scaled.bounds():
        yield enabled, "found true, but no role has bounds; write autoscale.rollout_worker.max, or that of another role"
    elif scaled.enabled and recipe.staleness_gate.max_staleness == 0:
        remedy = "write false, or staleness_gate.max_staleness = 1 or more"
        yield (
            enabled,
            f"found true, but trainer and generation take turns with staleness_gate.max_staleness = 0; {remedy}",
        )


def _autopilot_problems(recipe: Recipe, facts: RunFacts) -> Problems:
    """Yields what keeps limits from being chosen."""
    autopilot, gate = recipe.autopilot, recipe.staleness_gate
    if not autopilot.enabled:
        return
    if facts.is_online or facts.learns_from_examples:
        fault = "found true, but the load of a run without agents of its own is not measured; write false"
        yield ("autopilot", "enabled"), fault
    elif not autopilot.lowest():
        fault = "found true, but no limit may be chosen; write autopilot.min_staleness or autopilot.min_concurrent"
        yield ("autopilot", "enabled"), fault
    if autopilot.min_staleness is not None and autopilot.min_staleness > gate.max_staleness:
        fault = f"found {autopilot.min_staleness}, above staleness_gate.max_staleness = {gate.max_staleness}"
        yield ("autopilot", "min_staleness"), f"{fault}; write {gate.max_staleness} or less"
    if autopilot.min_concurrent is not None and gate.max_concurrent == "auto":
        fault = f'found {autopilot.min_concurrent}, but staleness_gate.max_concurrent = "auto" already follows the load'
        yield ("autopilot", "min_concurrent"), f"{fault}; leave one of them out"
    elif autopilot.min_concurrent is not None and autopilot.min_concurrent > int(gate.max_concurrent):
        fault = f"found {autopilot.min_concurrent}, above staleness_gate.max_concurrent = {gate.max_concurrent}"
        yield ("autopilot", "min_concurrent"), f"{fault}; write {gate.max_concurrent} or less"
    elif autopilot.min_concurrent is not None and autopilot.min_concurrent < (batch := recipe.trainer.batch_size):
        fault = f"found {autopilot.min_concurrent}, but one batch (trainer.batch_size) takes {batch}"
        yield ("autopilot", "min_concurrent"), f"{fault}; write at least {batch}"


def unused_settings(autoscale: AutoscaleSettings, autopilot: AutopilotSettings) -> Iterator[Key]:
    """Yields the tables of a run with fixed numbers of workers, and with fixed limits."""
    if not (autoscale.enabled or autopilot.enabled):
        yield ("autoscale",)
    if not autopilot.enabled:
        yield ("autopilot",)
