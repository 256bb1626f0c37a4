"""The health monitor on a bus in memory: what it kills, reports and ends, with readings of the clock that the test
chooses."""

from __future__ import annotations

import asyncio

import msgspec
import psutil
import pytest
from support.live_run import ROOT

from areal_actors.core.devices import CudaDevices
from areal_actors.messages import Heartbeat, RunStalled, WatchProbe
from areal_actors.recipe.load import load
from areal_actors.supervision.health import HealthMonitor
from areal_actors.supervision.liveness import Activity
from areal_bus.memory import MemoryBus

SHORT = ("profile=embedded", "watchdog.heartbeat_seconds=5", "watchdog.stall_seconds=20", "watchdog.bus_seconds=15")
PIDS = {"trainer": 11, "gateway": 12}
ACTORS = {"trainer": "trainer-0", "gateway": "session_manager-0"}


class Processes:
    """Stands for the supervisor."""

    def __init__(self):
        self.pids = dict(PIDS)
        self.killed = []

    def alive(self):
        return {name: pid for name, pid in self.pids.items() if pid not in [one[1] for one in self.killed]}

    def kill(self, name, pid, reason):
        self.killed.append((name, pid, reason))


class Watch:
    """A monitor and everything that it does; `pass_seconds` moves its clock."""

    def __init__(self, *settings):
        recipe = load([ROOT / "recipes" / "gsm8k_grpo.toml"], [*SHORT, *settings], CudaDevices(0, "none")).recipe
        self.supervisor, self.published, self.ended = Processes(), [], []
        self.monitor = HealthMonitor(recipe, MemoryBus("run"), self.supervisor, self.publish, self.ended.append)
        self.monitor.liveness.expected = lambda process: [ACTORS[process]]
        self.monitor.liveness.activity = lambda pid: Activity(state="stopped")
        self.now = 1000.0
        self.monitor.clock._last = self.now

    async def publish(self, event):
        self.published.append(event)

    async def pass_seconds(self, seconds, *beating, answering=True):
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for process in beating:
                self.beat(process)
            if answering:
                self.monitor.receive(WatchProbe(number=0), 0.0)
            self.monitor.look(self.now)
            await asyncio.sleep(0)

    def beat(self, process):
        beat = Heartbeat(
            actor=ACTORS[process],
            process=process,
            pid=self.supervisor.pids[process],
            handling={},
            waits=(),
            status={},
            cpu_seconds=0.0,
            peak_memory_bytes=0,
        )
        self.monitor.receive(beat, 0.0)

    async def pause(self, seconds):
        """The process of the monitor itself does not run."""
        self.now += seconds
        self.monitor.look(self.now)
        await asyncio.sleep(0)

    def sentences(self):
        return [event.sentence for event in self.published if isinstance(event, RunStalled)]


@pytest.fixture(autouse=True)
def _no_server_of_other_tests(monkeypatch):
    """A test that ran before in this process may have left a nats-server that ends with it."""
    monkeypatch.setattr(psutil.Process, "children", lambda process: [])


@pytest.fixture
async def watch():
    return Watch()


async def test_a_process_without_heartbeats_is_killed_by_its_id_with_the_reason(watch):
    await watch.pass_seconds(3, "trainer", "gateway")
    await watch.pass_seconds(7, "gateway")
    ((name, pid, reason),) = watch.supervisor.killed
    assert (name, pid) == ("trainer", 11)
    assert reason == "no heartbeat of trainer-0 for 6 s; its process 11 is stopped (SIGSTOP, or a debugger)"


async def test_after_a_pause_of_its_own_no_process_is_late_and_the_pause_is_reported(watch):
    await watch.pass_seconds(3, "trainer", "gateway")
    await watch.pause(40.0)
    await watch.pass_seconds(2)
    await watch.pass_seconds(10, "trainer", "gateway")
    assert watch.supervisor.killed == []
    assert watch.sentences()[0] == "the supervisor's own process was paused for 40 s"


async def test_while_nats_server_does_not_answer_no_process_is_late_and_the_server_is_named(watch):
    await watch.pass_seconds(3, "trainer", "gateway")
    await watch.pass_seconds(10, answering=False)
    await watch.pass_seconds(2)
    await watch.pass_seconds(10, "trainer", "gateway")
    assert watch.supervisor.killed == []
    assert watch.ended == []
    assert watch.sentences() == ["nats-server did not answer the supervisor for 10 s and answers again"]


async def test_a_server_that_does_not_answer_for_bus_seconds_ends_the_run_by_name(watch):
    await watch.pass_seconds(3, "trainer", "gateway")
    await watch.pass_seconds(20, answering=False)
    assert watch.supervisor.killed == []
    assert watch.ended[0] == "nats-server has not answered the supervisor for 16 s (watchdog.bus_seconds = 15)"
    assert watch.monitor.server_silent == watch.ended[-1]


async def test_processes_that_are_silent_together_are_named_first_and_killed_at_last(watch):
    await watch.pass_seconds(3, "trainer", "gateway")
    await watch.pass_seconds(7)
    assert watch.supervisor.killed == []
    assert "no process has sent a heartbeat for" in watch.sentences()[0]
    await watch.pass_seconds(10)
    assert {name for name, _, _ in watch.supervisor.killed} == set(PIDS)


async def test_a_replacement_that_never_beats_is_missed():
    watch = Watch("watchdog.start_seconds=4")
    await watch.pass_seconds(3, "trainer", "gateway")
    watch.supervisor.pids["trainer"] = 99
    await watch.pass_seconds(6, "gateway")
    ((name, pid, reason),) = watch.supervisor.killed
    assert (name, pid) == ("trainer", 99)
    assert "trainer-0 did not start: its process 99 is stopped" in reason


async def test_a_stall_names_who_has_not_started(watch):
    watch.supervisor.pids["trainer"] = 99
    await watch.pass_seconds(22, "gateway")
    assert watch.sentences() == ["no progress for 20 s; trainer-0 not started yet"]


async def test_a_stall_names_a_stopped_process_and_a_joined_worker_that_has_not_started():
    watch = Watch("watchdog.heartbeat_seconds=30")
    await watch.pass_seconds(2, "trainer", "gateway")
    watch.monitor.leases.admit("rollout_worker-10000", watch.monitor.clock.watching)
    await watch.pass_seconds(19, "gateway")
    (sentence,) = watch.sentences()
    assert "trainer-0 has sent no heartbeat for 18 s" in sentence
    assert "process 11 of trainer is stopped (SIGSTOP, or a debugger)" in sentence
    assert "rollout_worker-10000 joined 18 s ago and has not started yet" in sentence
    assert "gateway" not in sentence


async def test_a_first_start_that_makes_progress_is_no_stall(watch):
    used = iter(range(10_000))
    watch.monitor.liveness.activity = lambda pid: Activity(cpu_seconds=float(next(used)), state="running")
    await watch.pass_seconds(60, "gateway")
    assert watch.sentences() == []
    assert watch.supervisor.killed == []


async def test_a_served_model_is_never_reported_as_stalled():
    watch = Watch()
    served = msgspec.structs.replace(watch.monitor.settings, stall_seconds=1.0)
    watch.monitor.watchdog.settings = served
    watch.monitor.trains = False
    await watch.pass_seconds(10, "trainer", "gateway")
    assert watch.sentences() == []
