"""Late processes are found by process ids and heartbeats; one that starts is not late while it makes progress."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.supervision.liveness import Activity, Liveness, activity_of

SETTINGS = WatchdogSettings(heartbeat_seconds=10.0, start_seconds=20.0)
ACTORS = {"control": ["batcher-0", "metrics-0"], "trainer": ["trainer-0"], "rollout_worker": ["rollout_worker-0"]}
PIDS = {"control": 1, "trainer": 2, "rollout_worker": 3}


def liveness(activity=None):
    found = activity or {}
    return Liveness(SETTINGS, ACTORS.__getitem__, lambda pid: found.get(pid, Activity(state="sleeping")))


def beating(watch, now, *processes, pids=PIDS):
    for process in processes or pids:
        for actor in ACTORS[process]:
            watch.beat(pids[process], actor, now)


def names(found):
    return [(one.process, one.pid) for one in found]


def test_a_process_is_late_when_one_of_its_actors_is():
    watch = liveness()
    beating(watch, 0.0)
    watch.beat(1, "metrics-0", 9.0)
    beating(watch, 9.0, "trainer", "rollout_worker")
    assert watch.overdue(PIDS, 10.0) == []
    (late,) = watch.overdue(PIDS, 10.5)
    assert (late.process, late.pid) == ("control", 1)
    assert late.reason == "no heartbeat of batcher-0 for 10 s; its process 1 is sleeping"


def test_a_stopped_process_is_named_as_such():
    watch = liveness({3: Activity(state=psutil.STATUS_STOPPED)})
    beating(watch, 0.0)
    beating(watch, 11.0, "control", "trainer")
    (late,) = watch.overdue(PIDS, 11.0)
    assert late.reason == "no heartbeat of rollout_worker-0 for 11 s; its process 3 is stopped (SIGSTOP, or a debugger)"


def test_the_heartbeats_of_a_dead_process_do_not_count_for_its_replacement():
    watch = liveness()
    beating(watch, 0.0)
    beating(watch, 11.0, "control", "trainer")
    replaced = {**PIDS, "rollout_worker": 4}
    assert watch.overdue(replaced, 11.0) == []
    watch.beat(3, "rollout_worker-0", 11.5)
    assert watch.missing("rollout_worker", 4) == ["rollout_worker-0"]


def test_a_replacement_that_never_beats_and_makes_no_progress_is_killed():
    watch = liveness()
    beating(watch, 0.0)
    replaced = {**PIDS, "trainer": 7}
    for now in range(1, 30):
        beating(watch, float(now), "control", "rollout_worker")
        if found := watch.overdue(replaced, float(now)):
            break
    assert names(found) == [("trainer", 7)]
    assert now == 22
    assert (
        "trainer-0 did not start: its process 7 is sleeping, used no CPU time and read nothing for 21 s"
        in found[0].reason
    )


def test_a_slow_start_that_uses_the_processor_or_the_disk_is_alive_but_not_for_ever():
    watch = liveness(activity := {7: Activity(state="running")})
    replaced = {"trainer": 7}
    for now in range(200):
        kinds = (
            Activity(now * 0.01, 0, "running"),
            Activity(0.0, now * 10_000, "sleeping"),
            Activity(0.0, 0, "disk-sleep"),
        )
        activity[7] = kinds[now // 67]
        assert watch.overdue(replaced, float(now)) == [], now
    (late,) = watch.overdue(replaced, 201.0)
    assert "did not start within 200 s" in late.reason


def test_an_actor_that_hangs_beside_others_that_beat_is_killed_however_busy_they_are():
    watch = liveness(activity := {})
    for now in range(30):
        activity[1] = Activity(float(now), 0, "running")
        watch.beat(1, "metrics-0", float(now))
        if found := watch.overdue({"control": 1}, float(now)):
            break
    assert names(found) == [("control", 1)]
    assert found[0].reason.startswith("batcher-0 did not start: other actors of its process 1 serve")


def test_when_all_are_silent_at_once_none_is_killed_and_it_is_reported_until_a_deadline():
    watch = liveness()
    beating(watch, 0.0)
    assert watch.overdue(PIDS, 11.0) == []
    assert watch.silence.startswith(
        "no process has sent a heartbeat for 11 s although nats-server answers the supervisor: all 3"
    )
    beating(watch, 12.0)
    assert watch.overdue(PIDS, 13.0) == []
    assert watch.silence == ""
    assert sorted(names(watch.overdue(PIDS, 45.0))) == sorted(PIDS.items())


def test_after_a_gap_of_the_watcher_every_process_has_the_whole_time_again():
    watch = liveness()
    beating(watch, 0.0)
    watch.beat(5, "batcher-0", 9.0)
    watch.excuse(9.5)
    beating(watch, 18.0, "control")
    assert watch.overdue(PIDS, 19.0) == []
    assert len(watch.overdue(PIDS, 20.0)) == 2


def test_what_the_operating_system_knows_of_processes():
    mine = activity_of(os.getpid())
    assert mine.cpu_seconds > 0
    assert mine.state
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert activity_of(ended.pid) == Activity()
