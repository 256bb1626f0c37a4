"""Recovery time of each fault, read from the log."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from areal_actors.messages import ActorFailed, ActorStarted, ActorStopped, BatchFormed, FaultInjected, StepCompleted
from areal_bus.message import Message


class Recovery(msgspec.Struct, frozen=True):
    """A fault, and the seconds until every actor served and a step was trained on a batch that was formed after it."""

    kind: str
    target: str
    detail: str
    seconds: float | None
    """None if the run ended before."""


class OpenFault:
    """A fault from which the run has not recovered yet."""

    def __init__(self, event: FaultInjected, time: float, step: int) -> None:
        self.event, self.time, self.step = event, time, step
        self.stepped_at = 0.0

    def closed(self, time: float) -> Recovery:
        """Return the recovery at this time."""
        return Recovery(self.event.kind, self.event.target, self.event.detail, time - self.time)


def recoveries(events: Iterable[tuple[float, Message]]) -> list[Recovery]:
    """All faults of a log, in order of their recovery."""
    found: list[Recovery] = []
    waiting: list[OpenFault] = []
    serving: set[str] = set()
    known: set[str] = set()
    formed = 0
    for time, event in events:
        match event:
            case FaultInjected():
                waiting.append(OpenFault(event, time, formed + 1))
            case BatchFormed():
                formed = max(formed, event.step + 1)
            case ActorStarted():
                known.add(event.actor)
                serving.add(event.actor)
            case ActorFailed() | ActorStopped():
                serving.discard(event.actor)
            case StepCompleted():
                for fault in waiting:
                    fault.stepped_at = fault.stepped_at or (time if event.step >= fault.step else 0.0)
        if known == serving:
            found += [fault.closed(time) for fault in waiting if fault.stepped_at]
            waiting = [fault for fault in waiting if not fault.stepped_at]
    return [*found, *(Recovery(one.event.kind, one.event.target, one.event.detail, None) for one in waiting)]


def rows(found: Sequence[Recovery]) -> list[tuple[str, ...]]:
    """Lines of a table: kind, target, faults, seconds to recover p50 and max, and the number without recovery."""
    lines = []
    for kind, target in sorted({(one.kind, one.target) for one in found}):
        some = [one for one in found if (one.kind, one.target) == (kind, target)]
        seconds = [one.seconds for one in some if one.seconds is not None]
        times = (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("", "")
        lines.append((f"{kind} of {target}", str(len(some)), *times, str(len(some) - len(seconds))))
    return lines


def by_kind(found: Sequence[Recovery]) -> dict[str, dict[str, float]]:
    """Faults, p50 and max of each kind, for the history."""
    result: dict[str, dict[str, float]] = {}
    for kind in sorted({one.kind for one in found}):
        seconds = [one.seconds for one in found if one.kind == kind and one.seconds is not None]
        faults = sum(one.kind == kind for one in found)
        result[kind] = {"faults": faults, "recovered": len(seconds)}
        if seconds:
            result[kind] |= {"seconds_p50": statistics.median(seconds), "seconds_max": max(seconds)}
    return result
