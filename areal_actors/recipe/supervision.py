"""The supervision tree of a recipe: validation and display."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

import msgspec

from areal_actors.core.actor_settings import ActorsSettings, Placement, processes_of
from areal_actors.core.problems import Problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import COUNTED
from areal_actors.recipe.run_settings import SupervisorSettings

Tree = Mapping[str, SupervisorSettings]

FIRST_JOINED = 10_000
"""Number of the first worker of another host; those of the recipe have lower numbers."""


def root_of(tree: Tree) -> str:
    """Returns the supervisor without a parent; the tree must be valid."""
    children = {child for supervisor in tree.values() for child in supervisor.children}
    return next(name for name in tree if name not in children)


def tree_problems(tree: Tree, placements: ActorsSettings) -> Problems:
    """Yields problems that keep the supervisors from being one tree over all actors.

    An actor with count 0 needs no supervisor.
    """
    table, actors = "supervisors", ActorsSettings.__struct_fields__
    for name in tree:
        if name in actors:
            yield (table, name), f"found a supervisor with the name of an actor; rename {name}"
    parents: dict[str, str] = {}
    for name, supervisor in tree.items():
        for child in supervisor.children:
            if child not in actors and child not in tree:
                near = difflib.get_close_matches(child, [*actors, *tree], n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"actors are {', '.join(actors)}"
                yield (table, name, "children"), f"found `{child}`, which is neither an actor nor a supervisor; {hint}"
            elif child in parents:
                yield (table, name, "children"), f"found `{child}`, which {parents[child]} has already; name it once"
            else:
                parents[child] = name
    roots = [name for name in tree if name not in parents]
    if len(roots) > 1:
        yield (
            (table, roots[1]),
            f"found several supervisors without a parent: {', '.join(roots)}; put all but one under another",
        )
    if missing := [actor for actor in actors if actor not in parents and getattr(placements, actor).count]:
        yield (table,), f"found no supervisor of {', '.join(missing)}; name each as a child of a supervisor"
    if cycle := [name for name in tree if name not in _reachable(tree, roots)]:
        yield (
            (table, cycle[0]),
            f"found a cycle: {', '.join(cycle)} supervise each other; one supervisor must have no parent",
        )


def _reachable(tree: Tree, roots: list[str]) -> set[str]:
    """Returns these supervisors and all below them."""
    reached: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in tree and name not in reached:
            reached.add(name)
            todo.extend(tree[name].children)
    return reached


def draw_tree(tree: Tree, actors: ActorsSettings) -> str:
    """Returns the tree as text, one line per node, with processes and counts."""
    return "\n".join(_lines(tree, msgspec.structs.asdict(actors), root_of(tree), 0))


def _lines(tree: Tree, placements: Mapping[str, Placement], name: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if name in tree:
        supervisor = tree[name]
        below = [line for child in supervisor.children for line in _lines(tree, placements, child, depth + 1)]
        if below:
            times = "restart" if supervisor.max_restarts == 1 else "restarts"
            yield (
                f"{indent}{name} [{supervisor.restart}, at most {supervisor.max_restarts} {times} in"
                f" {supervisor.window_seconds:g} s]"
            )
            yield from below
        return
    placement = placements[name]
    if placement.count == 0:
        return
    at_once = f", {placement.concurrency} at once" if placement.concurrency > 1 else ""
    yield f"{indent}{name} ×{placement.count}{at_once} in {' '.join(processes_of(placement))}"


def joined_kind(process: str) -> str:
    """Returns the kind of the actor of a process of another host; empty for processes of the recipe."""
    kind, _, number = process.rpartition("-")
    return kind if kind in COUNTED and number.isdecimal() and int(number) >= FIRST_JOINED else ""


def gateways_of_others(recipe: Recipe) -> dict[int, str]:
    """Returns the gateways that run on other hosts: by number, the process of this host that may take each over."""
    processes = processes_of(recipe.actors.session_manager)
    return dict(list(enumerate(processes))[len(processes) - recipe.gateway.joined :])
