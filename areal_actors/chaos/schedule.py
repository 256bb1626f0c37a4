"""When which fault comes: a pure function of the settings, the kind and the number of the fault.

A run that is resumed goes on with the number that its log has come to, so its faults are those that were still to come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec

from areal_actors.chaos.settings import ChaosSettings, FaultRate, Kind
from bus.message import FrozenMeta


class Planned(msgspec.Struct, metaclass=FrozenMeta):
    """A fault that is to come."""

    kind: Kind
    number: int
    """Among those of its kind, from 0."""
    due: float
    """Seconds after the schedule began, in this life of the run."""

    def random(self, seed: int) -> Random:
        """What chooses its target and its bytes."""
        return Random(f"{seed}/{self.kind}/{self.number}/target")


class Schedule:
    """The next fault of each kind."""

    def __init__(self, settings: ChaosSettings, injected: Mapping[str, int]) -> None:
        """`injected` says how many of each kind there have been in earlier lives of the run."""
        self.settings = settings
        self.next: dict[Kind, Planned] = {}
        for kind, rate in settings.rates().items():
            self._follow(kind, rate, injected.get(kind, 0), 0.0)

    def first(self) -> Planned | None:
        """The fault that comes first; None if there are no more."""
        return min(self.next.values(), key=lambda planned: planned.due, default=None)

    def passed(self, planned: Planned) -> None:
        """This fault has been injected; the next of its kind follows."""
        self._follow(planned.kind, self.settings.rates()[planned.kind], planned.number + 1, planned.due)

    def postponed(self, planned: Planned, seconds: float) -> None:
        """It cannot be injected now."""
        self.next[planned.kind] = msgspec.structs.replace(planned, due=planned.due + seconds)

    def _follow(self, kind: Kind, rate: FaultRate, number: int, after: float) -> None:
        if rate.count and number >= rate.count:
            self.next.pop(kind, None)
            return
        pause = Random(f"{self.settings.seed}/{kind}/{number}").expovariate(rate.per_minute / 60)
        self.next[kind] = Planned(kind=kind, number=number, due=after + pause)


def dealt(targets: Sequence[str], planned: Planned, seed: int) -> list[str]:
    """Targets in the order in which this fault tries them: like cards, so that each comes up as often as another."""
    deck = list(targets)
    if not deck:
        return deck
    Random(f"{seed}/{planned.kind}/{planned.number // len(deck)}/deck").shuffle(deck)
    first = planned.number % len(deck)
    return deck[first:] + deck[:first]


def chosen(targets: Sequence[str], there: Sequence[str], random: Random, matches: Callable[[str, str], bool]) -> str:
    """The first of the targets that is there, and if several match it one of them; empty if none is there."""
    for target in targets:
        if found := [name for name in there if matches(target, name)]:
            return random.choice(found)
    return ""
