"""Checks of a recipe by the parts that it has, found where the parts are.

A part of ours has a module `recipe_check.py` in its folder, with a function `find_problems`; another distribution
names such a function as an entry point of the group `areal_actors.checks`. The parameters of the function name what it
reads: tables of the recipe, as in `find_problems(chaos: ChaosSettings, bus: BusSettings)`; `facts`, those about its
run; and `recipe`, all of it. A part of ours that has settings without effect in some runs names them in a function
`unused_settings` beside it, which asks in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from areal_actors.core.errors import RecipeError
from areal_actors.core.installed_parts import installed_parts
from areal_actors.core.layers import Key
from areal_actors.core.own_modules import own_modules
from areal_actors.core.problems import Problems
from areal_actors.core.run_facts import RunFacts
from areal_actors.recipe.recipe import Recipe

MODULE = "recipe_check"


class PartCheck(NamedTuple):
    """The check of a part."""

    name: str
    """The part's module; of another distribution the name of its part, with the distribution."""
    find_problems: Callable[..., Problems]
    unused_settings: Callable[..., Iterator[Key]] | None = None

    def problems(self, recipe: Recipe, facts: RunFacts) -> Problems:
        """Yields key and complaint of each problem; raises as `_arguments`."""
        yield from self.find_problems(**self._arguments(self.find_problems, recipe, facts))

    def find_unused(self, recipe: Recipe, facts: RunFacts) -> Iterator[Key]:
        """Yields settings and tables without effect in such a run."""
        if self.unused_settings is not None:
            yield from self.unused_settings(**self._arguments(self.unused_settings, recipe, facts))

    def _arguments(self, function: Callable[..., Any], recipe: Recipe, facts: RunFacts) -> dict[str, Any]:
        """Returns what a function of the part asks for.

        Raises:
            RecipeError: the check asks for something that is no table of a recipe.
        """
        known = {"recipe": recipe, "facts": facts, **{name: getattr(recipe, name) for name in recipe.__struct_fields__}}
        names = list(inspect.signature(function).parameters)
        if unknown := [name for name in names if name not in known]:
            tables = ", ".join(known)
            raise RecipeError(f"the check {self.name} has a parameter `{unknown[0]}`; parameters are named {tables}")
        return {name: known[name] for name in names}


@cache
def part_checks() -> tuple[PartCheck, ...]:
    """Returns the checks of our parts, and those of other distributions.

    Raises:
        RecipeError: one of another distribution cannot be loaded.
    """
    return (*_own_checks(), *(PartCheck(str(part), part.load()) for part in installed_parts("check").values()))


def _own_checks() -> Iterator[PartCheck]:
    for module in own_modules(MODULE):
        yield PartCheck(module.__name__, module.find_problems, getattr(module, "unused_settings", None))


def facts_of(recipe: Recipe, *, serving: bool) -> RunFacts:
    """Returns the facts about a recipe's run, with `serving` about `areal-actors serve`."""
    return RunFacts(
        is_serving=serving,
        learns_from_examples=recipe.learns_from_examples(),
        is_online=recipe.is_online(),
        plays_environment=recipe.plays_environment(),
        absent=recipe.absent(),
        group_size=recipe.algorithm.group_size,
        is_served=recipe.is_served(),
        examples=recipe.examples(),
    )
