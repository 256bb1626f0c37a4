"""The schedule of faults: a pure function of the settings, the kind and the number of a fault.

A resumed run continues with the next number by its log, so it gets exactly the remaining faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec

from areal_actors.chaos.settings import ChaosSettings, FaultRate, Kind
from areal_bus.message import FrozenMeta


class PlannedFault(msgspec.Struct, metaclass=FrozenMeta):
    """A scheduled fault."""

    kind: Kind
    number: int
    """Index among the faults of its kind, from 0."""
    due: float
    """Seconds after the schedule began, in this launch of the run."""

    def random(self, seed: int) -> Random:
        """Returns the random generator for its target and bytes."""
        return Random(f"{seed}/{self.kind}/{self.number}/target")


class FaultSchedule:
    """The next fault of each kind."""

    def __init__(self, settings: ChaosSettings, injected: Mapping[str, int]) -> None:
        """`injected`: number of faults of each kind in earlier launches of the run."""
        self.settings = settings
        self.next: dict[Kind, PlannedFault] = {}
        for kind, rate in settings.rates().items():
            self._follow(kind, rate, injected.get(kind, 0), 0.0)

    def first(self) -> PlannedFault | None:
        """Returns the next fault; None if there are no more."""
        return min(self.next.values(), key=lambda planned: planned.due, default=None)

    def schedule_next(self, planned: PlannedFault) -> None:
        """Schedule the next fault of the kind of this injected one."""
        self._follow(planned.kind, self.settings.rates()[planned.kind], planned.number + 1, planned.due)

    def postpone(self, planned: PlannedFault, seconds: float) -> None:
        """Postpone a fault that cannot be injected now."""
        self.next[planned.kind] = msgspec.structs.replace(planned, due=planned.due + seconds)

    def _follow(self, kind: Kind, rate: FaultRate, number: int, after: float) -> None:
        if rate.count and number >= rate.count:
            self.next.pop(kind, None)
            return
        pause = Random(f"{self.settings.seed}/{kind}/{number}").expovariate(rate.per_minute / 60)
        self.next[kind] = PlannedFault(kind=kind, number=number, due=after + pause)


def shuffled_targets(targets: Sequence[str], planned: PlannedFault, seed: int) -> list[str]:
    """Returns targets in the order in which this fault tries them.

    They are a shuffled deck, so that each is chosen equally often.
    """
    deck = list(targets)
    if not deck:
        return deck
    Random(f"{seed}/{planned.kind}/{planned.number // len(deck)}/deck").shuffle(deck)
    first = planned.number % len(deck)
    return deck[first:] + deck[:first]


def choose_target(
    targets: Sequence[str], names: Sequence[str], random: Random, matches: Callable[[str, str], bool]
) -> str:
    """Returns a random match of the first target that runs; empty if none does."""
    for target in targets:
        if matching := [name for name in names if matches(target, name)]:
            return random.choice(matching)
    return ""
