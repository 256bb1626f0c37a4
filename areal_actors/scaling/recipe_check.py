"""Validates `[autoscale]`.

Bounds that agree with each other and with the workers of the run, and leave room for others.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from areal_actors.core.autoscale_settings import AutoscaleSettings, WorkerBounds
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems
from areal_actors.core.run_facts import RunFacts
from areal_actors.recipe.recipe import Recipe


def find_problems(recipe: Recipe, facts: RunFacts) -> Problems:
    """Yields what keeps the number of workers from being decided on."""
    if facts.is_serving:
        return
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


def unused_settings(autoscale: AutoscaleSettings) -> Iterator[Key]:
    """Yields the table of a run with fixed numbers of workers."""
    if not autoscale.enabled:
        yield ("autoscale",)
