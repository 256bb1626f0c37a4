"""The benchmark of faults measures recovery times from a log."""

from __future__ import annotations

import sys

import pytest
from support.audit_logs import sound_log
from support.live_run import ROOT

from areal_actors.messages import ActorFailed, ActorStarted, BatchFormed, FaultInjected, StepCompleted

sys.path.insert(0, str(ROOT / "benchmarks"))
from chaos_recovery import Recovery, by_kind, recoveries, rows

KILL = FaultInjected(kind="kill", target="gateway", detail="SIGKILL")
PAUSE = FaultInjected(kind="pause", target="trainer", detail="SIGSTOP")


def batch(step):
    batches = [event for event in sound_log() if isinstance(event, BatchFormed)]
    return batches[step]


def stepped(step):
    return StepCompleted(step=step, metrics={}, sequences_checksum="")


STARTED = ActorStarted(actor="session_manager-0", process="gateway", pid=1)
FAILED = ActorFailed(actor="session_manager-0", process="gateway", reason="killed")


def test_a_fault_is_over_when_a_batch_formed_after_it_is_trained_and_all_serve():
    log = [
        *((0.0, STARTED), (1.0, batch(0)), (2.0, KILL), (2.1, FAILED), (3.0, stepped(1))),
        *((4.0, batch(1)), (5.0, stepped(2)), (7.5, STARTED), (8.0, PAUSE), (9.0, batch(2)), (10.0, stepped(3))),
    ]
    assert recoveries(log) == [
        Recovery("kill", "gateway", "SIGKILL", 5.5),
        Recovery("pause", "trainer", "SIGSTOP", 2.0),
    ]


def test_a_fault_that_the_run_ended_in_has_no_time():
    log = [(0.0, STARTED), (1.0, batch(0)), (2.0, KILL), (3.0, stepped(1))]
    found = recoveries(log)
    assert found == [Recovery("kill", "gateway", "SIGKILL", None)]
    assert rows(found) == [("kill of gateway", "1", "", "", "1")]
    assert by_kind(found) == {"kill": {"faults": 1, "recovered": 0}}


def test_the_table_has_a_line_for_each_kind_and_target():
    found = [Recovery("kill", "gateway", "", seconds) for seconds in (1.0, 2.0, 9.0)] + [
        Recovery("kill", "trainer", "", 4.0)
    ]
    assert rows(found) == [("kill of gateway", "3", "2.0", "9.0", "0"), ("kill of trainer", "1", "4.0", "4.0", "0")]
    assert by_kind(found)["kill"] == {
        "faults": 4,
        "recovered": 4,
        "seconds_p50": pytest.approx(3.0),
        "seconds_max": 9.0,
    }
