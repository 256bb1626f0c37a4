"""Figures of a run that `part_faults.py` has disturbed, read from its log.

Standstills, reports of stalls, episodes lost or doubled.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Sequence

import msgspec
from part_scene import STALL_SECONDS, SUPERVISOR, Fault

from areal_actors.messages import RunStalled, StepCompleted, TrajectoryExported
from areal_bus.message import Message

REPORT_SECONDS = 2.0
"""Time beyond `watchdog.stall_seconds` after which a stall must have been reported."""


class Reports(msgspec.Struct):
    """Reports of stalls after a fault."""

    right: list[str] = []
    """Those that name what the fault hit, as silent, missing or starting."""
    wrong: list[str] = []


class Effect(msgspec.Struct):
    """Effect of a fault on its run."""

    fault: Fault
    standstill: float
    """Longest time without a step or an exported episode (or an answer of the part itself), in seconds."""
    reports: Reports
    unreported: bool
    """True if the run stood still for longer than a stall may be unreported, and nothing is reported. A part that is no
    run reports nothing, nor does a run that was killed itself."""


def names_the_cause(sentence: str, names: Sequence[str]) -> bool:
    """Returns True if a report of a stall names one of these actors, or what it serves.

    It names it as silent, missing, starting or waited for.
    """
    for name in names:
        if name == SUPERVISOR and "the supervisor's own process was paused" in sentence:
            return True
        actor = rf"{re.escape(name)}[^;,]*"
        silent = (
            rf"{actor} (has sent no heartbeat|has not started|not started yet|serves no weights yet)|waits for \w+ from"
            rf" {actor}"
        )
        role = "gateway" if name.startswith("session_manager") else name.rpartition("-")[0]
        if re.search(silent, sentence) or f"no {role} has joined" in sentence:
            return True
    return False


def longest_gap(times: Sequence[float], since: float, until: float) -> float:
    """Returns the longest time between two neighbouring times that overlaps a period."""
    inside = [(first, second) for first, second in itertools.pairwise(times) if second > since and first < until]
    if times and times[-1] < until:
        inside.append((max(times[-1], since), until))
    return max((second - first for first, second in inside), default=until - since)


def effects(log: Iterable[tuple[float, Message]], faults: Sequence[Fault]) -> tuple[list[Effect], float]:
    """Returns the effect of each fault, and the median time between two steps of the run, in seconds."""
    progress, steps, stalls = [], [], []
    for time, event in log:
        if isinstance(event, StepCompleted | TrajectoryExported):
            progress.append(time)
        if isinstance(event, StepCompleted):
            steps.append(time)
        if isinstance(event, RunStalled):
            stalls.append((time, event.sentence))
    gaps = [second - first for first, second in itertools.pairwise(steps)]
    return [_effect(fault, progress, stalls) for fault in faults], statistics.median(gaps) if gaps else 0.0


def _effect(fault: Fault, progress: Sequence[float], stalls: Sequence[tuple[float, str]]) -> Effect:
    reports = Reports()
    for time, sentence in stalls:
        if fault.at <= time <= fault.until:
            (reports.right if names_the_cause(sentence, fault.names) else reports.wrong).append(sentence)
    training = longest_gap(progress, fault.at, fault.until)
    reports_stalls = not fault.own and (fault.kind == "pause" or SUPERVISOR not in fault.names)
    unreported = (
        reports_stalls and training > STALL_SECONDS + REPORT_SECONDS and not reports.right and not reports.wrong
    )
    return Effect(fault, longest_gap(fault.own, fault.at, fault.until) if fault.own else training, reports, unreported)
