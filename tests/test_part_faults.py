"""Conclusions of `benchmarks/part_faults.py` from a log: standstills, and whether a report of a stall names its
cause."""

from __future__ import annotations

import importlib

import pytest
from support.live_run import ROOT
from support.samples import exported

from areal_actors.messages import RunStalled, StepCompleted


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("part_measure")


def step(number):
    return StepCompleted(step=number, metrics={}, sequences_checksum="")


@pytest.mark.parametrize(
    ("sentence", "names", "right"),
    [
        (
            "no progress for 6 s; rollout_worker-10000 has sent no heartbeat for 6 s; the batcher has 0",
            ("rollout_worker-",),
            True,
        ),
        (
            "no progress for 6 s; rollout_worker-10000 handles 2 RunEpisode, waits for agent in episode 3.1",
            ("rollout_worker-",),
            False,
        ),
        ("no progress for 6 s; inference_worker-0 has sent no heartbeat for 6 s", ("rollout_worker-",), False),
        ("no progress for 6 s; no rollout_worker has joined: start one", ("rollout_worker-",), True),
        ("no progress for 6 s; no gateway has joined: start one", ("session_manager-1",), True),
        (
            "no progress for 6 s; inference_worker-10001 joined 4 s ago and has not started yet",
            ("inference_worker-",),
            True,
        ),
        ("no progress for 6 s; session_manager-0 not started yet", ("session_manager-0",), True),
        (
            (
                "no progress for 9 s; rollout_worker-1 handles 2 RunEpisode, waits for OpenSession from"
                " session_manager-0 since 9 s"
            ),
            ("session_manager-0",),
            True,
        ),
        ("the supervisor's own process was paused for 8 s", ("supervisor",), True),
        ("no progress for 9 s; trainer-0 handles 1 BatchFormed", ("supervisor",), False),
    ],
)
def test_a_report_is_right_if_it_names_what_the_fault_hit(parts, sentence, names, right):
    assert parts.names_the_cause(sentence, names) is right


def test_the_standstill_and_the_reports_of_a_fault_are_those_of_its_time(parts):
    fault = parts.Fault(part="host", kind="pause", names=("rollout_worker-",), at=11.0, until=30.0)
    silent, other = (
        RunStalled(sentence="rollout_worker-1 has sent no heartbeat for 6 s", seconds=6.0),
        RunStalled(sentence="x", seconds=9.0),
    )
    log = [
        (9.0, step(1)),
        (10.0, step(2)),
        (17.0, silent),
        (25.0, exported("0.0")),
        (26.0, step(3)),
        (40.0, other),
        (31.0, step(4)),
    ]
    (effect,), median = parts.effects(log, [fault])
    assert (effect.standstill, effect.reports.right, effect.reports.wrong, effect.unreported) == (
        15.0,
        [silent.sentence],
        [],
        False,
    )
    assert median == 5.0
    (effect,), _ = parts.effects([entry for entry in log if entry[1] is not silent], [fault])
    assert effect.unreported
