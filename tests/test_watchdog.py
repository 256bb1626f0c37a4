from __future__ import annotations

import pytest
from support.samples import abandoned, exported, loaded, published

from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    Heartbeat,
    InteractionRecorded,
    InteractionsRecorded,
    StepCompleted,
    Throughput,
    TrainerProgress,
    TrajectoryDropped,
    Wait,
    WorkerJoined,
    WorkerLeft,
)
from areal_actors.supervision.watchdog import Watchdog

SETTINGS = WatchdogSettings(
    stall_seconds=30.0, max_stall_seconds=300.0, max_failures_in_a_row=3, max_discarded_batches=2
)
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


def watchdog(*messages, at=0.0, **options):
    dog = Watchdog(SETTINGS, 0.0, batch_size=2, **options)
    for message in messages:
        dog.receive(message, at, at)
    return dog


def stepped(step):
    return StepCompleted(step=step, metrics={}, sequences_checksum="")


def dropped(group, reason="stale"):
    return TrajectoryDropped(episode=f"{group}.0", group=str(group), reason=reason)


def test_silence_is_reported_after_the_limit_and_then_once_per_limit():
    dog = watchdog(exported("0.0"), at=10.0)
    assert dog.find_stall(39.9) is None
    _, seconds = dog.find_stall(40.0)
    assert seconds == 30.0
    assert dog.find_stall(69.0) is None
    _, seconds = dog.find_stall(71.0)
    assert seconds == 61.0


def test_what_moves_ends_the_silence_and_heartbeats_and_failures_do_not():
    dog = watchdog()
    for second in range(0, 30, 5):
        dog.receive(beat("trainer-0"), float(second))
        dog.receive(abandoned("0.0", attempts_left=1), float(second))
    assert dog.find_stall(30.0) is not None
    dog.receive(published(1), 31.0)
    assert dog.find_stall(60.9) is None


def test_the_message_has_the_waiting_actors_durations_and_the_limit_reached():
    dog = watchdog(
        beat("staleness_gate-0", status=GATE),
        beat("batcher-0", status={"complete_groups": 1, "batch_size": 3}),
        beat("evaluator-0", status={"evaluation-4-sampled": "9/10"}),
        beat(
            "session_manager-0",
            handling={"ModelRequest": 2},
            waits=(
                Wait(name="Generate from inference_worker-0", since=5.0, deadline=400.0),
                Wait(name="later", since=9.0, deadline=0.0),
            ),
        ),
        beat("idle-0"),
        at=43.0,
    )
    assert (
        dog.sentence(45.0)
        == "no progress for 45 s; the staleness gate (limit reached: staleness_gate.max_staleness) has 2 groups"
        " running, 1 complete and 0 in training at weight version 4; the batcher has 1 complete groups of the 3 of a"
        " batch; evaluation-4-sampled has ended 9/10 episodes; session_manager-0 handles 2 ModelRequest, waits for"
        " Generate from inference_worker-0 since 40 s, waits for later since 36 s"
    )


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("none", "no limit reached"),
        ("staleness", "limit reached: staleness_gate.max_staleness"),
        ("concurrency", "limit reached: staleness_gate.max_concurrent"),
        ("steps", "enough groups are running for the remaining steps"),
        ("baseline", "waiting for the evaluation before the first step"),
        ("evaluation", "waiting for an evaluation"),
        ("weights", "waiting for weights to be loaded"),
        ("stopped", "the run is stopping"),
    ],
)
def test_every_bound_has_its_words(bound, words):
    dog = watchdog(beat("staleness_gate-0", status={**GATE, "bound": bound}))
    assert f"the staleness gate ({words})" in dog.sentence(1.0)


def test_before_any_heartbeat_there_is_still_a_message():
    assert watchdog().sentence(60.0) == "no progress for 60 s"


def test_dead_processes_wait_for_nothing():
    waiting = beat("rollout_worker-0", waits=(Wait(name="agent", since=0.0, deadline=1.0),))
    for end in (
        ActorFailed(actor="rollout_worker-0", process="p", reason="r"),
        ActorStopped(actor="rollout_worker-0", process="p"),
    ):
        dog = watchdog(waiting, end)
        assert "rollout_worker" not in dog.sentence(60.0)


def test_a_row_of_failures_ends_the_run_with_the_commonest_reason():
    dog = watchdog(abandoned("0.0"), abandoned("0.1", reason="reward"))
    assert dog.too_many_failures() == ""
    dog.receive(abandoned("1.0"), 1.0)
    assert (
        dog.too_many_failures()
        == "3 episodes in a row failed after all retries; most common reason (2 times): agent: as it happens"
    )


def test_a_success_between_failures_and_attempts_that_are_repeated_do_not_count():
    dog = watchdog(abandoned("0.0"), abandoned("0.1"), exported("0.2"), abandoned("0.3"), abandoned("0.4"))
    assert dog.too_many_failures() == ""
    for _ in range(10):
        dog.receive(abandoned("0.5", attempts_left=1), 1.0)
    assert dog.too_many_failures() == ""


def test_the_age_of_a_wait_is_measured_by_the_clock_of_who_waits():
    waiting = beat(
        "rollout_worker-0", waits=(Wait(name="agent in episode 3.1", since=1_000_000.0, deadline=1_000_100.0),)
    )
    dog = watchdog()
    dog.receive(waiting, 50.0, 1_000_007.0)
    assert "rollout_worker-0 waits for agent in episode 3.1 since 9 s" in dog.sentence(52.0)


def test_work_that_is_thrown_away_is_no_progress_however_much_there_is():
    dog = watchdog(stepped(3), published(3), loaded("inference_worker-0", 3), at=0.0)
    dog.receive(published(4), 1.0)
    for now in range(2, 40):
        for episode in ("0", "1"):
            dog.receive(exported(f"{now}.{episode}"), float(now))
        dog.receive(dropped(now), float(now))
        dog.receive(TrajectoryDropped(episode=f"{now}.1", group=str(now), reason="stale"), float(now))
    wait = Wait(name="loading weight version 4", since=2.0, deadline=300.0)
    dog.receive(beat("inference_worker-0", waits=(wait,)), 39.0, 39.0)
    sentence, seconds = dog.find_stall(40.0)
    assert seconds == 38.0
    assert (
        sentence == "no step was trained for 40 s: 38 groups were sampled and dropped since step 3 (38 stale); "
        "inference_worker-0 still serves weight version 3 while version 4 was published 39 s ago; "
        "inference_worker-0: loading weight version 4 has taken 38 s; "
        "inference_worker-0 waits for loading weight version 4 since 38 s"
    )
    assert dog.problem(40.0) == f"{sentence}; watchdog.max_discarded_batches = 2 is reached"


def test_groups_may_be_dropped_between_steps_and_for_a_while():
    dog = watchdog(stepped(1), *(dropped(group) for group in range(4)))
    assert dog.problem(29.0) == "", "not for stall_seconds yet"
    dog.receive(stepped(2), 29.0)
    assert dog.problem(100.0) == "", "a step was trained since"
    for group in range(10):
        dog.receive(dropped(group, "filtered"), 100.0)
        dog.receive(dropped(group + 10, "surplus"), 100.0)
    assert dog.problem(100.0) == "", "the batcher counts what its filter drops"


def test_completed_calls_are_progress_while_no_work_is_thrown_away():
    counts = {"prompt_tokens": 5, "completion_tokens": 2, "finish_reason": "stop", "weight_version": 4}
    calls = InteractionsRecorded(recorded=(InteractionRecorded(session="s", episode="3.0", interaction="i", **counts),))
    dog = watchdog(stepped(1))
    dog.receive(calls, 40.0)
    assert dog.find_stall(60.0) is None
    dog.receive(dropped(2, "stale"), 50.0)
    dog.receive(calls, 60.0)
    assert dog.find_stall(80.0) is not None


def test_a_trajectory_that_is_kept_is_progress():
    dog = watchdog(stepped(1), dropped(1))
    for now in (20.0, 40.0, 60.0):
        dog.receive(exported(f"{now:.0f}.0"), now)
        assert dog.find_stall(now + 10) is None


def test_a_phase_of_the_trainer_is_progress_while_it_advances():
    dog = watchdog()
    for now in range(0, 100, 10):
        dog.receive(TrainerProgress(phase="warm start", done=now, total=1000), float(now))
    assert dog.find_stall(119.0) is None
    for now in range(100, 130, 10):
        dog.receive(TrainerProgress(phase="warm start", done=90, total=1000), float(now))
    assert dog.find_stall(120.0) is not None


def test_steps_that_are_taken_again_and_starts_are_no_progress():
    dog = watchdog(stepped(5))
    dog.receive(stepped(4), 20.0)
    assert dog.find_stall(31.0) is not None


def test_a_stall_without_end_ends_the_run_unless_it_waits_for_clients():
    dog = watchdog(stepped(1))
    assert dog.problem(299.0) == ""
    assert dog.problem(300.0) == "no progress for 300 s; watchdog.max_stall_seconds = 300 is reached"
    assert watchdog(stepped(1), waits_for_clients=True).problem(1e6) == ""


def test_failures_while_weights_do_not_load_name_the_weights():
    failed = [abandoned(f"{number}.0", reason="timeout") for number in range(3)]
    dog = watchdog(published(0), *failed)
    dog.receive(beat("inference_worker-0"), 1.0, 1.0)
    assert dog.problem(9.0) == "", "nobody serves weights yet: loading them has a deadline of its own"
    for message in (loaded("inference_worker-0", 0), published(1), *failed):
        dog.receive(message, 10.0)
    assert (
        dog.problem(19.0)
        == "3 episodes in a row failed after all retries; most common reason (3 times): timeout: as it happens; "
        "inference_worker-0 still serves weight version 0 while version 1 was published 9 s ago"
    )


def test_a_role_of_other_hosts_without_a_worker_is_the_cause():
    dog = watchdog(joined=["inference_worker", "rollout_worker"])
    dog.receive(beat("inference_worker-10000"), 1.0)
    sentence, _ = dog.find_stall(40.0)
    assert "no rollout_worker has joined: start one with `areal-actors join --role rollout_worker`" in sentence
    assert "no inference_worker has joined" not in sentence
    dog.receive(beat("rollout_worker-10001"), 41.0)
    dog.receive(WorkerLeft(worker="inference_worker-10000"), 42.0)
    sentence, _ = dog.find_stall(80.0)
    assert "no rollout_worker has joined" not in sentence
    assert "no inference_worker has joined" in sentence
    dog.receive(WorkerJoined(worker="inference_worker-10002", role="inference_worker", host="b"), 81.0)
    assert "no inference_worker has joined" not in dog.sentence(90.0), "it starts, which the health monitor adds"
    dog.receive(WorkerLeft(worker="inference_worker-10002"), 91.0)
    assert "no inference_worker has joined" in dog.sentence(92.0)


def test_a_silent_actor_is_the_cause_of_a_stall_before_what_it_was_doing():
    """A paused worker is not given up yet; its agents wait for nothing that the stall could name."""
    waits = (Wait(name="agent in episode 3.1", since=0.0, deadline=0.0),)
    dog = watchdog(exported("0.0"), beat("rollout_worker-10000", handling={"RunEpisode": 2}, waits=waits), at=5.0)
    dog.receive(beat("inference_worker-0"), 34.0)
    sentence, _ = dog.find_stall(35.0)
    before, doing = "rollout_worker-10000 has sent no heartbeat for 30 s", "rollout_worker-10000 handles 2 RunEpisode"
    assert sentence.index(before) < sentence.index(doing)
    assert "inference_worker-0 has sent no heartbeat" not in sentence
    dog.receive(WorkerLeft(worker="rollout_worker-10000"), 36.0)
    assert "rollout_worker-10000" not in dog.sentence(80.0)


def sampled(tokens, side="generation"):
    return Throughput(actor="inference_worker-0", side=side, tokens=tokens, started=0.0, seconds=1.0)


def test_an_engine_that_samples_is_no_stall_unless_its_work_is_discarded_or_fails():
    dog = watchdog(sampled(3), at=20.0)
    assert dog.find_stall(49.0) is None
    assert watchdog(sampled(0), sampled(9, side="training"), at=20.0).find_stall(31.0) is not None
    assert watchdog(dropped(1), sampled(3), at=20.0).find_stall(31.0) is not None
    assert watchdog(abandoned("0.0", attempts_left=0), sampled(3), at=20.0).find_stall(31.0) is not None
