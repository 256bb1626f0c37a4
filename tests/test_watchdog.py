from __future__ import annotations

import pytest
from samples import abandoned, exported, published

from areal_actors.messages import ActorFailed, ActorStopped, Heartbeat, Wait
from areal_actors.run.watchdog import Watchdog
from areal_actors.settings import WatchdogSettings

SETTINGS = WatchdogSettings(stall_seconds=30.0, heartbeat_seconds=10.0, max_failures_in_a_row=3)
GATE = {"bound": "staleness", "weight_version": 4, "running": 2, "complete": 1, "in_batch": 0, "trained": 8}


def beat(actor, *, handling=None, waits=(), status=None, process=""):
    return Heartbeat(
        actor=actor,
        process=process or actor,
        pid=1,
        handling=handling or {},
        waits=waits,
        status=status or {},
        cpu_seconds=0.0,
        peak_memory_bytes=0,
    )


def watchdog(*messages, at=0.0):
    dog = Watchdog(SETTINGS, 0.0)
    for message in messages:
        dog.heard(message, at)
    return dog


def test_silence_is_reported_after_the_limit_and_then_once_per_limit():
    dog = watchdog(exported("0.0"), at=10.0)
    assert dog.stalled(39.9) is None
    _, seconds = dog.stalled(40.0)
    assert seconds == 30.0
    assert dog.stalled(69.0) is None
    _, seconds = dog.stalled(71.0)
    assert seconds == 61.0


def test_what_moves_ends_the_silence_and_heartbeats_and_failures_do_not():
    dog = watchdog()
    for second in range(0, 30, 5):
        dog.heard(beat("trainer-0"), float(second))
        dog.heard(abandoned("0.0", attempts_left=1), float(second))
    assert dog.stalled(30.0) is not None
    dog.heard(published(1), 31.0)
    assert dog.stalled(60.9) is None


def test_the_sentence_says_who_waits_for_whom_since_when_and_which_bound_binds():
    dog = watchdog(
        beat("staleness_gate-0", status=GATE),
        beat("batcher-0", status={"complete_groups": 1, "batch_size": 3}),
        beat(
            "session_manager-0",
            handling={"CallModel": 2},
            waits=(Wait(name="Generate from inference_worker-0", since=5.0, deadline=400.0), Wait(name="later", since=9.0, deadline=0.0)),
        ),
        beat("idle-0"),
    )
    assert dog.sentence(45.0) == (
        "nothing has moved for 45 s; "
        "the staleness gate (the staleness bound binds) has 2 groups running, 1 complete and 0 in training at weight version 4; "
        "the batcher has 1 complete groups of the 3 of a batch; "
        "session_manager-0 handles 2 CallModel, waits for Generate from inference_worker-0 since 40 s"
    )


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("none", "no bound binds"),
        ("staleness", "the staleness bound binds"),
        ("concurrency", "max_concurrent binds"),
        ("steps", "enough is under way for the remaining steps"),
        ("baseline", "it waits for the evaluation before the first step"),
        ("weights", "it waits for weights to be loaded"),
        ("stopped", "the run is stopping"),
    ],
)
def test_every_bound_has_its_words(bound, words):
    dog = watchdog(beat("staleness_gate-0", status={**GATE, "bound": bound}))
    assert f"the staleness gate ({words})" in dog.sentence(1.0)


def test_before_anybody_was_heard_there_is_still_a_sentence():
    assert watchdog().sentence(60.0) == "nothing has moved for 60 s"


def test_the_dead_wait_for_nobody():
    waiting = beat("rollout_worker-0", waits=(Wait(name="agent", since=0.0, deadline=1.0),))
    for end in (ActorFailed(actor="rollout_worker-0", process="p", reason="r"), ActorStopped(actor="rollout_worker-0", process="p")):
        dog = watchdog(waiting, end)
        assert "rollout_worker" not in dog.sentence(60.0)
        assert dog.silent_processes(1000.0) == []


def test_a_process_is_silent_when_one_of_its_actors_is():
    dog = watchdog(beat("batcher-0", process="control"), beat("metrics-0", process="control"), beat("trainer-0"))
    dog.heard(beat("metrics-0", process="control"), 8.0)
    assert dog.silent_processes(10.0) == []
    assert dog.silent_processes(11.0) == ["control", "trainer-0"]
    dog.heard(beat("trainer-0"), 12.0)
    assert dog.silent_processes(15.0) == ["control"]


def test_a_row_of_failures_ends_the_run_with_the_commonest_reason():
    dog = watchdog(abandoned("0.0"), abandoned("0.1", reason="reward"))
    assert dog.too_many_failures() == ""
    dog.heard(abandoned("1.0"), 1.0)
    assert dog.too_many_failures() == "3 episodes in a row were abandoned for good; most often (2 times): agent: as it happens"


def test_a_success_between_failures_and_attempts_that_are_repeated_do_not_count():
    dog = watchdog(abandoned("0.0"), abandoned("0.1"), exported("0.2"), abandoned("0.3"), abandoned("0.4"))
    assert dog.too_many_failures() == ""
    for _ in range(10):
        dog.heard(abandoned("0.5", attempts_left=1), 1.0)
    assert dog.too_many_failures() == ""
