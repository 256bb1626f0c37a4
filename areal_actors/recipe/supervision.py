"""The supervision tree as the recipe declares it: is it a tree over all actors, and how does it look?"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

import msgspec

from areal_actors.settings import ActorsSettings, Placement, SupervisorSettings

Tree = Mapping[str, SupervisorSettings]
USUAL_PLACES = ActorsSettings()


def root_of(tree: Tree) -> str:
    """The supervisor that is nobody's child; the tree has been checked."""
    children = {child for supervisor in tree.values() for child in supervisor.children}
    return next(name for name in tree if name not in children)


def tree_problems(tree: Tree, placements: ActorsSettings = USUAL_PLACES) -> list[tuple[tuple[str, ...], str]]:
    """What keeps the supervisors from being one tree over all actors: key below `supervisors`, and complaint.

    An actor that the run has none of needs no supervisor.
    """
    actors = ActorsSettings.__struct_fields__
    found: list[tuple[tuple[str, ...], str]] = [
        ((name,), f"found a supervisor with the name of an actor; call it something else than {name}") for name in tree if name in actors
    ]
    parents: dict[str, str] = {}
    for name, supervisor in tree.items():
        for child in supervisor.children:
            if child not in actors and child not in tree:
                near = difflib.get_close_matches(child, [*actors, *tree], n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"actors are {', '.join(actors)}"
                found.append(((name, "children"), f"found `{child}`, which is neither an actor nor a supervisor; {hint}"))
            elif child in parents:
                found.append(((name, "children"), f"found `{child}`, which {parents[child]} has already; name it once"))
            else:
                parents[child] = name
    roots = [name for name in tree if name not in parents]
    if len(roots) > 1:
        found.append(((roots[1],), f"found several supervisors that are nobody's child: {', '.join(roots)}; put all but one under another"))
    missing = [actor for actor in actors if actor not in parents and getattr(placements, actor).count]
    if missing:
        found.append(((), f"found no supervisor of {', '.join(missing)}; name each as somebody's child"))
    if circle := [name for name in tree if name not in _reached(tree, roots)]:
        found.append(((circle[0],), f"found a circle: {', '.join(circle)} supervise each other; one supervisor must be nobody's child"))
    return found


def _reached(tree: Tree, roots: list[str]) -> set[str]:
    """These supervisors and all below them."""
    reached: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in tree and name not in reached:
            reached.add(name)
            todo.extend(tree[name].children)
    return reached


def drawn(tree: Tree, actors: ActorsSettings) -> str:
    """The tree, one line each, with processes and counts."""
    return "\n".join(_lines(tree, msgspec.structs.asdict(actors), root_of(tree), 0))


def _lines(tree: Tree, placements: Mapping[str, Placement], name: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if name in tree:
        supervisor = tree[name]
        below = [line for child in supervisor.children for line in _lines(tree, placements, child, depth + 1)]
        if below:
            times = "restart" if supervisor.max_restarts == 1 else "restarts"
            yield f"{indent}{name} [{supervisor.restart}, at most {supervisor.max_restarts} {times} in {supervisor.window_seconds:g} s]"
            yield from below
        return
    placement = placements[name]
    if placement.count == 0:
        return
    at_once = f", {placement.concurrency} at once" if placement.concurrency > 1 else ""
    yield f"{indent}{name} ×{placement.count}{at_once} in {' '.join(processes_of(placement))}"


def processes_of(placement: Placement) -> list[str]:
    """Names of the processes that an actor has: none, one, or one for each of a count above 1."""
    if placement.count == 1:
        return [placement.process]
    return [f"{placement.process}-{index}" for index in range(placement.count)]
