"""The limit of a run by its measured loads: one verdict for the live view, the summary and `why`."""

from __future__ import annotations

import msgspec

from areal_actors.display.run_state import RunState
from areal_actors.recipe.recipe import Recipe
from areal_actors.scaling.balance import mean_load
from areal_actors.scaling.limit import LimitFound, find_limit


def limit_of(state: RunState, recipe: Recipe | None = None) -> LimitFound | None:
    """Returns what limits a run that samples; None without a measured load, or with a recipe of another version."""
    load = mean_load(state.loads)
    if load is None or state.started is None:
        return None
    if recipe is None:
        try:
            recipe = msgspec.convert(state.started.recipe, Recipe)
        except msgspec.ValidationError:
            return None
    return find_limit(load, list(state.blocked.values()), with_chosen_limits(recipe, state))


def with_chosen_limits(recipe: Recipe, state: RunState) -> Recipe:
    """Returns the recipe with the limits of the staleness gate that the run works with now (`[autopilot]`)."""
    chosen = recipe.autopilot.lowest() | state.limits
    return msgspec.structs.replace(recipe, staleness_gate=msgspec.structs.replace(recipe.staleness_gate, **chosen))


def limit_sentence(state: RunState) -> str:
    """Returns the verdict as one sentence; empty without one."""
    found = limit_of(state)
    return found.sentence if found is not None else ""
