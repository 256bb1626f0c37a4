"""Restart strategies as pure functions.

They return the processes to restart after a death, and the limit at which a supervisor gives up.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from areal_actors.core.actor_settings import ActorsSettings, processes_of
from areal_actors.recipe.run_settings import SupervisorSettings
from areal_actors.recipe.supervision import Tree
from areal_bus.message import FrozenMeta


class Decision(msgspec.Struct, metaclass=FrozenMeta):
    """Decision after the death of a process."""

    restart: tuple[str, ...] = ()
    """Processes to stop (if they live) and start again, in this order."""
    give_up: str = ""
    """Reason why the run must end instead."""


class Restarts:
    """Counts recent restarts per supervisor; beyond its budget a supervisor fails and its parent decides."""

    def __init__(self, tree: Tree, actors: ActorsSettings) -> None:
        self.tree = tree
        placements = msgspec.structs.asdict(actors)
        self.processes = {name: tuple(processes_of(placement)) for name, placement in placements.items()}
        self.parents = {child: name for name, supervisor in tree.items() for child in supervisor.children}
        self.recent: dict[str, list[float]] = {name: [] for name in tree}

    def start_order(self) -> tuple[str, ...]:
        """Returns every process once, in the start order of the tree."""
        root = next(name for name in self.tree if name not in self.parents)
        return self._below(root)

    def decide_restart(self, process: str, now: float) -> Decision:
        """Decide about a dead process; `now` in seconds of any clock."""
        actors = [name for name, processes in self.processes.items() if process in processes]
        restart: list[str] = []
        for supervisor in dict.fromkeys(self.parents[name] for name in actors):
            children = [name for name in actors if self.parents[name] == supervisor]
            decision = self._decide(supervisor, children, process, now)
            if decision.give_up:
                return decision
            restart += decision.restart
        wanted = {process, *restart}
        return Decision(restart=tuple(name for name in self.start_order() if name in wanted))

    def _decide(self, supervisor: str, failed: list[str], process: str, now: float) -> Decision:
        settings = self.tree[supervisor]
        recent = [moment for moment in self.recent[supervisor] if now - moment < settings.window_seconds]
        self.recent[supervisor] = [*recent, now]
        if len(recent) >= settings.max_restarts:
            return self._escalate(supervisor, process, now)
        return Decision(restart=self._affected_processes(settings, failed, process))

    def _escalate(self, supervisor: str, process: str, now: float) -> Decision:
        settings = self.tree[supervisor]
        parent = self.parents.get(supervisor)
        if parent is None or settings.max_restarts == 0:
            limit = (
                f"more than {settings.max_restarts} restarts in {settings.window_seconds:g} s"
                if settings.max_restarts
                else "no restarts"
            )
            return Decision(give_up=f"{process} died, and supervisor `{supervisor}` allows {limit}")
        self.recent[supervisor] = []
        return self._decide(parent, [supervisor], process, now)

    def _affected_processes(self, settings: SupervisorSettings, failed: list[str], process: str) -> tuple[str, ...]:
        children = list(settings.children)
        if settings.restart == "one_for_all":
            affected = children
        elif settings.restart == "rest_for_one":
            affected = children[min(children.index(name) for name in failed) :]
        else:
            return tuple(
                name for child in failed for name in (self._below(child) if child in self.tree else (process,))
            )
        return tuple(name for child in affected for name in self._below(child))

    def _below(self, name: str) -> tuple[str, ...]:
        if name not in self.tree:
            return self.processes[name]
        below: Mapping[str, None] = dict.fromkeys(
            process for child in self.tree[name].children for process in self._below(child)
        )
        return tuple(below)
