"""Hosts that `[autoscale]` adds to a run: each of its decisions starts those that are missing, or has the newest leave.

What a host is, and how one starts and ends, each launcher defines by a `HostStarter`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from queue import Empty
from typing import Final, Protocol

from areal_actors.core.errors import ArealError, SetupError
from areal_actors.hosts.launchers.decision_reader import DecisionReader, ScaleChange
from areal_actors.hosts.launchers.plan import LaunchPlan

LOOK_SECONDS: Final = 1.0
"""Time after which room for missing hosts is looked for again."""
MAX_KILLED, WINDOW_SECONDS = 5, 60.0
"""Hosts that may be killed within this time; each is replaced by another."""


class NoRoom(ArealError):
    """Raised when nothing is free for another host now; it is started later."""


class HostStarter(Protocol):
    """Starts and ends hosts with one worker each. An OSError is reported as a SetupError is."""

    def start(self, role: str) -> str:
        """Start a host of a role; returns its name, which is never used again while it lives.

        Raises:
            NoRoom: none can be started now.
            SetupError: none can be started at all.
        """
        ...

    def leave(self, name: str) -> None:
        """Have a host leave the run: it finishes its work first, and one that has not started never starts."""
        ...

    def ended_of(self, names: Sequence[str]) -> Collection[str]:
        """Returns those of these hosts that have ended."""
        ...


def _none(_: Sequence[str]) -> Collection[str]:
    """A cluster replaces hosts that it has lost by its own rules."""
    return ()


class ScaledHosts:
    """The hosts that decisions have added. Workers of `[actors]` and `[hosts]` are not its own, and stay."""

    def __init__(
        self,
        plan: LaunchPlan,
        starter: HostStarter,
        living: Mapping[str, str] | None = None,
        since: float = 0.0,
        killed: Callable[[Sequence[str]], Collection[str]] = _none,
    ) -> None:
        """`living`: hosts that an earlier one of these has left, with their roles.

        It has followed the decisions before `since`.
        `killed` returns those of these hosts that were killed, and that nothing else replaces.
        """
        self._recipe, self._starter, self._killed = plan.recipe, starter, killed
        self._deaths: deque[float] = deque(maxlen=MAX_KILLED)
        self._most = {place.name: place.count for place in plan.added}
        self._since = since
        self._earlier: dict[str, int] = {}
        """Hosts that decisions before `since` have added, by role."""
        self.hosts: dict[str, str] = dict(living or {})
        """Role of each host that was not asked to leave, by name, in the order of their starts."""
        self._missing: dict[str, int] = {}
        """Hosts that are to be started, by role."""
        self._written: dict[str, str] = {}
        """The last report on each role, which is not repeated."""

    def follow(self, stopped: threading.Event) -> None:
        """Start and end hosts until `stopped` is set; blocks."""
        with DecisionReader(self._recipe.run, Path(self._recipe.folder) / self._recipe.run) as reader:
            while not stopped.is_set():
                try:
                    self.apply(reader.decisions.get(timeout=LOOK_SECONDS))
                except Empty:
                    self.start_missing()

    def apply(self, decision: ScaleChange) -> None:
        """Follow a decision.

        There are never more hosts than the bounds of `[autoscale]` leave beside those of the recipe.
        """
        role, more = decision.role, decision.workers - decision.before
        for name in self._ended_hosts():
            del self.hosts[name]
        own, missing = [name for name, its in self.hosts.items() if its == role], self._missing.get(role, 0)
        if decision.time < self._since:
            self._earlier[role] = min(max(self._earlier.get(role, 0) + more, 0), self._most.get(role, 0))
            self._missing[role] = max(self._earlier[role] - len(own), 0)  # started when no more decisions arrive
            return
        if more > 0:
            self._missing[role] = min(missing + more, max(self._most.get(role, 0) - len(own), 0))
        else:
            self._missing[role] = max(missing + more, 0)
            for name in own[min(missing + more, 0) or len(own) :]:
                self._leave(name)
        self.start_missing()

    def start_missing(self) -> None:
        """Start the hosts for which there is room now, those in place of killed ones among them."""
        self._replace_killed()
        for role, count in self._missing.items():
            for _ in range(count):
                try:
                    self.hosts[self._starter.start(role)] = role
                except NoRoom as error:
                    self._report(role, f"another {role} waits: {error}")
                    break
                except (SetupError, OSError) as error:
                    self._missing[role] = 0  # a later decision tries it again
                    self._report(role, f"no {role} is started: {error}")
                    break
                self._missing[role] -= 1
                self._written.pop(role, None)

    def _replace_killed(self) -> None:
        """Have another host take the place of each that was killed.

        The run waits for the workers on which it has decided.
        """
        for name in self._killed([*self.hosts]):
            role, now = self.hosts.pop(name), time.monotonic()
            if len(self._deaths) == MAX_KILLED and now - self._deaths[0] < WINDOW_SECONDS:
                self._report(
                    role, f"{name} was killed, as {MAX_KILLED} others within {WINDOW_SECONDS:g} s; none takes its place"
                )
                continue
            self._deaths.append(now)
            self._report(role, f"{name} was killed; another {role} takes its place")
            self._missing[role] = self._missing.get(role, 0) + 1

    def dismiss(self) -> None:
        """Have all hosts leave."""
        self._missing.clear()
        for name in [*self.hosts]:
            self._leave(name)

    def _leave(self, name: str) -> None:
        role = self.hosts.pop(name)
        try:
            self._starter.leave(name)
        except (SetupError, OSError) as error:
            self._report(role, f"{name} was not asked to leave: {error}")

    def _ended_hosts(self) -> Collection[str]:
        try:
            return self._starter.ended_of([*self.hosts]) if self.hosts else ()
        except (SetupError, OSError) as error:
            self._report("", f"which hosts have ended is not known: {error}")
            return ()

    def _report(self, role: str, sentence: str) -> None:
        if self._written.get(role) != sentence:
            self._written[role] = sentence
            sys.stderr.write(f"autoscale: {sentence}\n")
            sys.stderr.flush()
