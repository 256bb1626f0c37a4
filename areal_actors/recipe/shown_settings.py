"""Settings of a recipe that its run uses: those without effect are left out where people read it.

A setting is left out if its part names it as unused in such a run, and if it has its default, so that reading what is
shown gives the same recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.devices import CudaDevices
from areal_actors.core.layers import Key
from areal_actors.recipe.part_checks import facts_of, part_checks
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import CONCURRENT, COUNTED

DEVICE_SETTINGS: tuple[Key, ...] = (
    *((table, name) for table in ("trainer", "generation") for name in ("devices", "memory_fraction")),
    ("generation", "sleep"),
)
"""Settings without effect on a machine without CUDA."""


def shown_settings(recipe: Recipe, cuda: CudaDevices) -> tuple[dict[str, Any], list[Key]]:
    """Returns the tables of a recipe without unused settings, and these settings in the order of the recipe."""
    tables: dict[str, Any] = msgspec.to_builtins(recipe)
    facts = facts_of(recipe, serving=False)
    named = {*_of_actors(facts.absent), *(key for check in part_checks() for key in check.find_unused(recipe, facts))}
    if not cuda.count:
        named.update(DEVICE_SETTINGS)
    removed = [key for key in named if _has_default(recipe, key, facts.absent) and _remove(tables, key)]
    left_out = {key if key[0] in tables else key[:1] for key in removed}
    return tables, sorted(left_out, key=lambda key: (Recipe.__struct_fields__.index(key[0]), key))


def _of_actors(absent: frozenset[str]) -> Iterator[Key]:
    """Yields actors that such a run does not have, and settings of the others that have a single valid value."""
    for name in ActorsSettings.__struct_fields__:
        if name in absent:
            yield ("actors", name)
            continue
        if name not in COUNTED:
            yield ("actors", name, "count")
        if name not in CONCURRENT:
            yield ("actors", name, "concurrency")


def _has_default(recipe: Recipe, key: Key, absent: frozenset[str]) -> bool:
    """Returns True if a setting is as in a recipe that does not state it; an absent actor has no instance."""
    table = getattr(recipe, key[0])
    value, default = table, type(table)()
    if isinstance(default, ActorsSettings):
        none = {name: msgspec.structs.replace(getattr(default, name), count=0) for name in absent}
        default = msgspec.structs.replace(default, **none)
    for name in key[1:]:
        if not hasattr(value, name) or not hasattr(default, name):
            return False
        value, default = getattr(value, name), getattr(default, name)
    return bool(value == default)


def _remove(tables: dict[str, Any], key: Key) -> bool:
    """Remove a setting, and its table if nothing is left there; returns False if it was not there."""
    name, *rest = key
    if not rest:
        is_there = name in tables
        tables.pop(name, None)
        return is_there
    removed = isinstance(tables.get(name), dict) and _remove(tables[name], tuple(rest))
    if removed and not tables[name]:
        del tables[name]
    return removed
