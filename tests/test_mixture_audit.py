"""The audit of a mixture counts each source's draws, and finds groups of another source."""

from __future__ import annotations

import msgspec
import pytest
from support.audit_logs import RECIPE, STARTED, given_up, sound_log

from areal_actors.audit.audit import Audit
from areal_actors.audit.report import report
from areal_actors.messages import EpisodeAbandoned, RunResumed, RunStarted, TrajectoryExported
from areal_actors.tasks.mixture.source_order import SourceOrder

WEIGHTS = {"sums": 2.0, "tools": 1.0}
MIXED = {**RECIPE, "seed": 3, "task": {"mix": [{"name": name, "weight": weight} for name, weight in WEIGHTS.items()]}}
REPLACE = msgspec.structs.replace


def of_source(event, source_of):
    """An event of a sound log as in a run with a mixture."""
    if isinstance(event, RunStarted | RunResumed):
        return REPLACE(event, recipe=MIXED)
    if isinstance(event, TrajectoryExported):
        source = source_of(int(event.trajectory.group))
        return REPLACE(event, trajectory=REPLACE(event.trajectory, source=source))
    if isinstance(event, EpisodeAbandoned):
        task = REPLACE(event.work.task, source=source_of(int(event.work.group)))
        return REPLACE(event, work=REPLACE(event.work, task=task))
    return event


def audited(source_of):
    audit = Audit()
    for number, event in enumerate(sound_log(), start=1):
        audit.event(number, of_source(event, source_of))
    return audit


def drawn(number):
    return SourceOrder(WEIGHTS, 3).draw(number).source


def test_every_group_of_the_source_that_was_to_be_drawn_is_counted_once():
    audit = audited(drawn)
    assert audit.all_faults() == []
    assert sum(audit.sources.counts.values()) == audit.groups.granted
    line = next(line for line in report(audit).splitlines() if line.startswith("sources"))
    counts = audit.sources.counts
    assert f"sums {counts['sums']} of {counts['sums']} draws" in line
    assert "asked 66.7%" in line


def test_a_group_of_another_source_is_a_fault():
    audit = audited(lambda number: {"sums": "tools", "tools": "sums"}[drawn(number)] if number == 1 else drawn(number))
    (fault,) = audit.all_faults()
    assert fault.check == "source"
    assert fault.sentence.startswith("group 1 has a task of source")


@pytest.mark.parametrize("source", ["", "sums"])
def test_a_run_without_a_mixture_has_no_sources(source):
    audit = Audit()
    audit.event(1, STARTED)
    audit.event(2, of_source(given_up("0.0"), lambda _: source))
    assert audit.sources.counts == {}
    assert "sources" not in report(audit)
