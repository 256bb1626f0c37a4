"""Decisions of `[autoscale]` start hosts and have the newest leave; on this machine with real processes, and GPUs that
nothing holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from test_launch import plan

from areal_actors.core.errors import SetupError
from areal_actors.hosts.launchers.decision_reader import ScaleChange
from areal_actors.hosts.launchers.local_command import LocalCommand
from areal_actors.hosts.launchers.local_workers import LocalWorkers, holder
from areal_actors.hosts.launchers.scaled_hosts import NoRoom, ScaledHosts

BOUNDS = ("autoscale.enabled=true", "autoscale.rollout_worker.max=4", "autoscale.reward_worker.max=2")
ENGINES = ("autoscale.enabled=true", "autoscale.inference_worker.max=3", "hosts.inference_worker.gpus=1")
SECONDS = 120.0


def change(role: str, before: int, workers: int) -> ScaleChange:
    return ScaleChange(role=role, before=before, workers=workers)


class Hosts:
    """A starter that has room for a number of hosts, and remembers what was asked of it."""

    def __init__(self, room: int = 100) -> None:
        self.room, self.refusal = room, ""
        self.started: list[str] = []
        self.left: list[str] = []
        self.crashed: set[str] = set()

    def start(self, role: str) -> str:
        if self.refusal:
            raise SetupError(self.refusal)
        if len(self.started) >= self.room:
            raise NoRoom("all is taken")
        self.started.append(f"{role}-{len(self.started)}")
        return self.started[-1]

    def leave(self, name: str) -> None:
        if self.refusal:
            raise SetupError(self.refusal)
        self.left.append(name)

    def ended_of(self, names: Sequence[str]) -> set[str]:
        return self.crashed & set(names)


def scaled(room: int = 100) -> tuple[ScaledHosts, Hosts]:
    hosts = Hosts(room)
    return ScaledHosts(plan(*BOUNDS), hosts), hosts


def test_decisions_start_hosts_and_the_newest_of_the_role_leave():
    scaled_hosts, hosts = scaled()
    scaled_hosts.apply(change("rollout_worker", 1, 3))
    scaled_hosts.apply(change("reward_worker", 1, 2))
    assert hosts.started == ["rollout_worker-0", "rollout_worker-1", "reward_worker-2"]
    scaled_hosts.apply(change("rollout_worker", 3, 2))
    assert hosts.left == ["rollout_worker-1"]
    scaled_hosts.apply(change("rollout_worker", 2, 1))
    assert hosts.left == ["rollout_worker-1", "rollout_worker-0"]
    scaled_hosts.apply(change("rollout_worker", 1, 2))
    assert hosts.started[3:] == ["rollout_worker-3"]
    scaled_hosts.dismiss()
    assert set(hosts.left) == set(hosts.started)


def test_workers_of_the_recipe_stay():
    scaled_hosts, hosts = scaled()
    scaled_hosts.apply(change("rollout_worker", 3, 1))
    assert hosts.left == []


def test_hosts_are_never_more_than_the_bounds_leave():
    scaled_hosts, hosts = scaled()
    for _ in range(3):  # hosts that wait in a queue do not serve yet, and the run decides again
        scaled_hosts.apply(change("rollout_worker", 1, 3))
    assert len(hosts.started) == 3, "one of four is that of the recipe"


def test_earlier_decisions_are_not_followed_again_by_one_that_takes_over_but_hosts_that_they_lack_are_started():
    hosts = Hosts()
    living = {"rollout_worker-added-0": "rollout_worker", "rollout_worker-added-1": "rollout_worker"}
    successor = ScaledHosts(plan(*BOUNDS), hosts, living, since=100.0)
    for before, workers in ((1, 3), (3, 4), (4, 3)):
        successor.apply(ScaleChange(role="rollout_worker", before=before, workers=workers, time=50.0))
    successor.apply(ScaleChange(role="reward_worker", before=1, workers=2, time=60.0))
    successor.start_missing()
    assert (hosts.started, hosts.left) == (["reward_worker-0"], [])
    successor.apply(ScaleChange(role="rollout_worker", before=3, workers=2, time=110.0))
    assert hosts.left == ["rollout_worker-added-1"]
    successor.dismiss()
    assert hosts.left[1:] == ["rollout_worker-added-0", "reward_worker-0"]


def test_a_host_that_has_crashed_is_not_asked_to_leave():
    scaled_hosts, hosts = scaled()
    scaled_hosts.apply(change("rollout_worker", 1, 3))
    hosts.crashed.add("rollout_worker-1")
    scaled_hosts.apply(change("rollout_worker", 2, 1))
    assert hosts.left == ["rollout_worker-0"]


def test_a_killed_host_is_replaced_unless_it_was_asked_to_leave_or_too_many_are_killed(capsys):
    """The run waits for the workers on which it has decided, and decides on no others meanwhile."""
    hosts, killed = Hosts(), set()
    scaled_hosts = ScaledHosts(plan(*BOUNDS), hosts, killed=lambda names: killed & set(names))
    scaled_hosts.apply(change("rollout_worker", 1, 3))
    killed.add("rollout_worker-1")
    scaled_hosts.start_missing()
    assert hosts.started[2:] == ["rollout_worker-2"]
    assert "autoscale: rollout_worker-1 was killed; another rollout_worker takes its place" in capsys.readouterr().err
    scaled_hosts.apply(change("rollout_worker", 3, 2))
    assert hosts.left == ["rollout_worker-2"]
    killed.add("rollout_worker-2")
    scaled_hosts.start_missing()
    assert len(hosts.started) == 3, "it was to leave"
    for _ in range(10):
        killed.update(hosts.started)
        scaled_hosts.start_missing()
    assert len(hosts.started) == 3 + 4, "five are replaced within a minute"
    assert "as 5 others within 60 s; none takes its place" in capsys.readouterr().err


def test_missing_hosts_start_when_there_is_room_unless_they_are_no_longer_wanted(capsys):
    scaled_hosts, hosts = scaled(room=1)
    scaled_hosts.apply(change("rollout_worker", 1, 4))
    scaled_hosts.start_missing()
    assert len(hosts.started) == 1
    assert capsys.readouterr().err == "autoscale: another rollout_worker waits: all is taken\n", "once"
    hosts.room = 2
    scaled_hosts.start_missing()
    assert len(hosts.started) == 2
    scaled_hosts.apply(change("rollout_worker", 3, 2))
    hosts.room = 100
    scaled_hosts.start_missing()
    assert (len(hosts.started), hosts.left) == (2, []), "the missing one was dropped"


def test_what_cannot_start_or_leave_is_reported_and_the_next_decision_tries_again(capsys):
    scaled_hosts, hosts = scaled()
    hosts.refusal = "no cluster answers"
    scaled_hosts.apply(change("rollout_worker", 1, 2))
    hosts.refusal = ""
    scaled_hosts.start_missing()
    assert hosts.started == []
    scaled_hosts.apply(change("rollout_worker", 1, 2))
    hosts.refusal = "no cluster answers"
    scaled_hosts.apply(change("rollout_worker", 2, 1))
    assert capsys.readouterr().err.splitlines() == [
        "autoscale: no rollout_worker is started: no cluster answers",
        "autoscale: rollout_worker-0 was not asked to leave: no cluster answers",
    ]


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        (("hosts.rollout_worker.count=1", "hosts.rollout_worker.workers=2"), {"rollout_worker": 2, "reward_worker": 1}),
        (("actors.rollout_worker.count=4",), {"reward_worker": 1}),
        (("autoscale.enabled=false",), {}),
    ],
)
def test_the_plan_has_what_decisions_may_add(settings, most):
    assert {place.name: place.count for place in plan(*BOUNDS, *settings).added} == most


def test_an_added_host_has_what_a_worker_of_its_role_has():
    hosts = (
        "hosts.rollout_worker.count=1",
        "hosts.rollout_worker.workers=2",
        "hosts.rollout_worker.cpus=7",
        "hosts.wait_seconds=5",
    )
    place = next(place for place in plan(*BOUNDS, *hosts).added if place.name == "rollout_worker")
    assert (place.cpus, place.words) == (4, ("--role", "rollout_worker", "--wait", "5"))


PARENT = """
import os, signal, subprocess, sys, time
engine = [sys.executable, "-c", "import sys, time; print('engine', flush=True); time.sleep(600)"]
child = subprocess.Popen(engine, stdout=sys.stdout, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: (wait(), child.kill(), child.wait(), sys.exit(0)))
def wait():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
time.sleep(600)
"""
"""A worker with an engine below it; at SIGTERM it works on until a file appears."""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., tuple[ScaledHosts, LocalWorkers]]]:
    made: list[LocalWorkers] = []

    def start(command: LocalCommand) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", PARENT, str(tmp_path / "done")]
        process = subprocess.Popen(
            words, env={**os.environ, **holder(command)}, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"engine\n"
        return process

    def prepared(*gpus: int) -> tuple[ScaledHosts, LocalWorkers]:
        made.append(LocalWorkers(plan(*ENGINES), "nats://127.0.0.1:1/run", gpus, start))
        return ScaledHosts(plan(*ENGINES), made[-1]), made[-1]

    yield prepared
    for workers in made:
        for process in workers.processes.values():
            for one in _family(process):
                one.kill()
            process.wait()


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        parent = psutil.Process(process.pid)
        return [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return []


def until_started(scaled_hosts: ScaledHosts, workers: LocalWorkers, number: int) -> None:
    until = time.monotonic() + SECONDS
    while len(workers.processes) < number:
        assert time.monotonic() < until
        scaled_hosts.start_missing()
        time.sleep(0.05)


def test_the_gpu_of_a_worker_that_leaves_is_given_out_once_its_process_has_ended(launch, tmp_path, capsys):
    scaled_hosts, workers = launch(2)
    scaled_hosts.apply(change("inference_worker", 1, 2))
    scaled_hosts.apply(change("inference_worker", 2, 1))
    scaled_hosts.apply(change("inference_worker", 1, 2))
    first = workers.processes["inference_worker-added-0"]
    assert first.poll() is None
    assert len(workers.processes) == 1
    assert capsys.readouterr().err == "autoscale: another inference_worker waits: it needs 1 GPUs, and 0 are free\n"
    (tmp_path / "done").touch()
    until_started(scaled_hosts, workers, 2)
    assert first.poll() == 0


def test_the_gpu_of_a_worker_that_was_killed_is_given_out_once_its_engine_is_gone(launch):
    scaled_hosts, workers = launch(2)
    scaled_hosts.apply(change("inference_worker", 1, 2))
    first = workers.processes["inference_worker-added-0"]
    engine, _ = _family(first)
    engine.suspend()
    first.send_signal(signal.SIGKILL)
    first.wait()
    scaled_hosts.apply(change("inference_worker", 1, 2))
    assert len(workers.processes) == 1, "its engine lives"
    engine.kill()
    until_started(scaled_hosts, workers, 2)
    assert workers.processes["inference_worker-added-1"].poll() is None


def test_what_is_to_start_and_to_leave_is_written_for_a_program_which_reports_ends():
    program = (
        "import threading\n"
        "from areal_actors.hosts.launchers.ray import RayHosts\n"
        "stopped = threading.Event()\n"
        "hosts = RayHosts(stopped)\n"
        "first, second = hosts.start('reward_worker'), hosts.start('rollout_worker')\n"
        "hosts.leave(first)\n"
        "stopped.wait()\n"
        "print(hosts.ended_of([first, second]))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, input="reward_worker-added-0\n", capture_output=True, text=True, check=True, timeout=SECONDS
    )
    assert done.stdout.splitlines() == [
        "start reward_worker-added-0 reward_worker",
        "start rollout_worker-added-1 rollout_worker",
        "leave reward_worker-added-0",
        "{'reward_worker-added-0'}",
    ]
