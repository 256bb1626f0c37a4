"""`[chaos]`: off unless it is turned on, the same faults for the same seed, and each kind does its damage to processes
and files."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from random import Random

import msgspec
import pytest
from rich.console import Console
from support import story

from areal_actors.chaos import faults
from areal_actors.chaos.corruption import SPOILT, SpoilingEngine, order
from areal_actors.chaos.injector import FaultTargets, Health
from areal_actors.chaos.schedule import FaultSchedule, choose_target, shuffled_targets
from areal_actors.chaos.settings import ChaosSettings, KillFaults, PartitionFaults, PauseFaults
from areal_actors.chaos.tcp_proxy import Links, link_of
from areal_actors.cli import main
from areal_actors.core.column_check import number_fault, structure_fault
from areal_actors.core.values import SamplingParams
from areal_actors.display.sentences import plain_line
from areal_actors.display.summary import summary
from areal_actors.display.view import RunView
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.messages import ActorFailed, ActorStarted, BatchFormed, FaultInjected, RunResumed, StepCompleted
from areal_bus.server import EmbeddedServer

RECIPE = "recipes/gsm8k_grpo.toml"
KILLS = ChaosSettings(
    enabled=True, kill=KillFaults(per_minute=6.0, targets=("trainer", "worker")), pause=PauseFaults(per_minute=3.0)
)


def batch(step):
    return BatchFormed(
        step=step,
        groups=(),
        oldest_version=0,
        trained_trajectories=0,
        trained_tokens=0,
        dropped_trajectories=0,
        dropped_tokens=0,
    )


# ---------------------------------------------------------------- off unless it is on


def test_nothing_is_injected_unless_it_is_enabled_whatever_the_rates_are():
    settings = msgspec.structs.replace(KILLS, enabled=False)
    assert not settings.rates()
    assert not ChaosSettings(enabled=True).rates()
    assert FaultSchedule(settings, {}).first() is None
    assert settings.describe() == ""


def test_check_reports_whether_faults_are_injected(capsys):
    assert main(["check", RECIPE, "profile=embedded", "--static", "chaos.kill.per_minute=2"]) == 0
    assert "# chaos       none" in capsys.readouterr().out
    on = ("chaos.enabled=true", "chaos.kill.per_minute=2", 'chaos.kill.targets=["server"]')
    assert main(["check", RECIPE, "profile=embedded", "--static", *on]) == 0
    assert (
        "# chaos       ON: FAULTS ARE INJECTED INTO THIS RUN: kill 2 a minute (server); seed 0;"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["chaos.enabled=true"], "`chaos.enabled`: found true, but no fault has a rate"),
        (
            ["chaos.enabled=true", "chaos.kill.per_minute=1", 'chaos.kill.targets=["trianer"]'],
            'found "trianer"; did you mean `trainer`?',
        ),
        (
            ["chaos.enabled=true", "chaos.partition.per_minute=1", 'chaos.partition.targets=["server"]'],
            'found "server"',
        ),
        (
            ["chaos.enabled=true", "chaos.pause.per_minute=1", 'chaos.pause.targets=["server"]', "bus.url=nats://h:1"],
            "is not this run's own",
        ),
        (
            ["chaos.enabled=true", "chaos.partition.per_minute=1", "bus.url=tls://h:1"],
            "a link to a server with TLS cannot be cut",
        ),
        (["chaos.kill.per_minut=1"], "did you mean `per_minute`?"),
    ],
)
def test_what_cannot_be_injected_is_refused_before_the_run(capsys, words, complaint):
    assert main(["check", RECIPE, "profile=embedded", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_faults_are_shown_where_they_happen_and_counted_at_the_end():
    event = FaultInjected(kind="kill", target="gateway", detail="SIGKILL to process 7")
    assert plain_line(event) == "fault injected, kill of gateway: SIGKILL to process 7"
    view = RunView()
    for number in range(2):
        view.receive(story.sealed(event, number))
    for picture in (view, summary(view.state, [])):
        console = Console(width=200, file=io.StringIO())
        console.print(picture)
        assert "2 × kill of gateway" in console.file.getvalue()


# ---------------------------------------------------------------- the schedule


def planned(schedule, count):
    found = []
    for _ in range(count):
        found.append(schedule.first())
        schedule.schedule_next(found[-1])
    return found


def test_the_same_seed_is_the_same_schedule_and_another_is_another():
    assert planned(FaultSchedule(KILLS, {}), 20) == planned(FaultSchedule(KILLS, {}), 20)
    assert planned(FaultSchedule(KILLS, {}), 20) != planned(
        FaultSchedule(msgspec.structs.replace(KILLS, seed=1), {}), 20
    )
    faults_due = planned(FaultSchedule(KILLS, {}), 300)
    assert [fault.due for fault in faults_due] == sorted(fault.due for fault in faults_due)
    kills = [fault for fault in faults_due if fault.kind == "kill"]
    assert kills[-1].due / len(kills) == pytest.approx(10, rel=0.2), "six a minute"
    assert len(kills) == pytest.approx(200, rel=0.15), "two kills to a pause"


def test_a_resumed_run_continues_with_the_faults_that_were_still_to_come():
    whole = [fault for fault in planned(FaultSchedule(KILLS, {}), 30) if fault.kind == "kill"]
    rest = [fault for fault in planned(FaultSchedule(KILLS, {"kill": 5}), 20) if fault.kind == "kill"]
    assert [fault.number for fault in rest][:5] == [5, 6, 7, 8, 9]
    again = {fault.number: fault.random(0).random() for fault in rest}
    assert all(again[fault.number] == fault.random(0).random() for fault in whole if fault.number in again)


def test_a_count_bounds_the_faults_of_all_lives():
    settings = ChaosSettings(enabled=True, kill=KillFaults(per_minute=60.0, count=3))
    assert [fault.number for fault in planned(FaultSchedule(settings, {}), 3)] == [0, 1, 2]
    schedule = FaultSchedule(settings, {"kill": 2})
    schedule.schedule_next(schedule.first())
    assert schedule.first() is None


def test_a_target_stands_for_a_process_its_kind_or_an_actor_in_it(tmp_path):
    place = FaultTargets(
        tmp_path, dict, {"control": frozenset({"batcher"}), "rollout_worker-0": frozenset({"rollout_worker"})}
    )
    there = ["control", "rollout_worker-0", "rollout_worker-1"]
    assert place.matches("batcher", "control")
    assert place.matches("rollout_worker", "rollout_worker-1")
    assert not place.matches("trainer", "control")
    assert {
        choose_target(("rollout_worker", "control"), there, Random(seed), place.matches) for seed in range(40)
    } == set(there[1:])
    assert choose_target(("trainer", "control"), there, Random(0), place.matches) == "control"
    assert choose_target(("trainer",), there, Random(0), place.matches) == ""


def test_targets_are_dealt_like_cards_so_that_each_comes_up_as_often():
    firsts = [
        shuffled_targets("abc", fault, 7)[0] for fault in planned(FaultSchedule(KILLS, {}), 40) if fault.kind == "kill"
    ]
    assert [sorted(firsts[start : start + 3]) for start in range(0, 15, 3)] == [list("abc")] * 5
    assert len(set(map("".join, zip(firsts[::3], firsts[1::3], strict=False)))) > 1, "in another order each time"
    assert shuffled_targets((), FaultSchedule(KILLS, {}).first(), 0) == []


# ---------------------------------------------------------------- health


def test_a_run_is_healthy_again_when_all_serve_and_a_batch_formed_after_the_fault_is_trained():
    health = Health()
    assert not health.is_healthy()
    for event in (
        ActorStarted(actor="a", process="p", pid=1),
        batch(0),
        StepCompleted(step=1, metrics={}, sequences_checksum=""),
    ):
        health.receive(event)
    assert health.is_healthy()
    health.receive(batch(1))
    health.receive(FaultInjected(kind="kill", target="p", detail=""))
    health.receive(ActorFailed(actor="a", process="p", reason="killed"))
    health.receive(StepCompleted(step=2, metrics={}, sequences_checksum=""))
    assert not health.is_healthy(), "the batch was formed before"
    health.receive(batch(2))
    health.receive(StepCompleted(step=3, metrics={}, sequences_checksum=""))
    assert not health.is_healthy(), "nobody serves"
    health.receive(ActorStarted(actor="a", process="p", pid=2))
    assert health.is_healthy()
    assert health.injected == {"kill": 1}
    health.receive(RunResumed(recipe={}, reason="", folder=""))
    health.receive(ActorStarted(actor="a", process="p", pid=3))
    assert not health.is_healthy(), "a new life has to take a step first"


# ---------------------------------------------------------------- what is done


def test_one_bit_of_a_file_is_flipped(tmp_path):
    path = tmp_path / "weights"
    before = bytes(range(256)) * 4
    path.write_bytes(before)
    faults.flip_bit(path, Random(3))
    differences = [a ^ b for a, b in zip(before, path.read_bytes(), strict=True) if a != b]
    assert len(differences) == 1
    assert differences[0].bit_count() == 1


def test_the_newest_checkpoint_is_a_complete_one(tmp_path):
    for name in ("step-9", "step-10", ".writing-step-12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text("x")
    (tmp_path / "step-10" / "empty").touch()
    (tmp_path / "best").symlink_to("step-9")
    assert faults.newest_checkpoint(tmp_path) == [tmp_path / "step-10" / "weights"]
    assert faults.newest_checkpoint(tmp_path / "none") == []


COUNTER = "import time\nwhile True:\n    open({path!r}, 'a').write('x')\n    time.sleep(0.01)\n"


def grows(path, within=300.0):
    before, until = path.stat().st_size, time.monotonic() + within
    while time.monotonic() < until:
        if path.stat().st_size > before:
            return True
        time.sleep(0.02)
    return False


def state_of(pid):
    return subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=True
    ).stdout.strip()[:1]


def until_state(pid, wanted, seconds=300.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (state_of(pid) == "T") == wanted:
            return True
        time.sleep(0.02)
    return False


def test_a_paused_process_continues_even_if_who_paused_it_is_killed(tmp_path):
    path = tmp_path / "count"
    path.touch()
    counter = subprocess.Popen([sys.executable, "-c", COUNTER.format(path=str(path))])
    try:
        assert grows(path)
        program = (
            f"from areal_actors.chaos.faults import hold; hold({counter.pid}, 2.0); import os; os.kill(os.getpid(), 9)"
        )
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
        assert until_state(counter.pid, wanted=True)
        assert until_state(counter.pid, wanted=False)
        assert grows(path)
    finally:
        counter.kill()
        counter.wait()


async def test_a_cut_link_delivers_nothing_and_loses_nothing(tmp_path):
    async def echo(reader, writer):
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    links = Links(tmp_path)
    settings = ChaosSettings(enabled=True, partition=PartitionFaults(per_minute=1.0))
    at = f"nats://trainer:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert link_of(settings, tmp_path, "trainer", at) == at
    await links.open(at, ["trainer"])
    try:
        url = link_of(settings, tmp_path, "trainer", at)
        assert url.startswith("nats://trainer:secret@127.0.0.1:")
        assert url != at
        assert link_of(settings, tmp_path, "gateway", at) == at
        assert link_of(msgspec.structs.replace(settings, enabled=False), tmp_path, "trainer", at) == at
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        os.kill(links.processes["trainer"].pid, signal.SIGSTOP)
        writer.write(b"during")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(100), 0.5)
        os.kill(links.processes["trainer"].pid, signal.SIGCONT)
        assert await asyncio.wait_for(reader.readexactly(6), 300) == b"during"
        writer.close()
    finally:
        await links.close()
        server.close()
    assert not links.path.exists()


async def test_the_server_of_a_run_is_found_by_its_own_files_only(tmp_path):
    first, second = tmp_path / "a" / "nats", tmp_path / "b" / "nats"
    one, other = await EmbeddedServer.start(first), await EmbeddedServer.start(second)
    try:
        assert (faults.server_pid(first), faults.server_pid(second)) == (one.pid, other.pid)
        (first / f"nats-server_{os.getpid()}.ports").write_text("{}")
        assert faults.server_pid(first) == one.pid, "a file of a process id that is another's by now"
    finally:
        await one.stop()
        await other.stop()
    assert faults.server_pid(first) == 0


SHOWS_IN_COLUMNS = sorted(set(SPOILT) - {"unpublished", "decreasing-version", "unknown-reason", "no-end", "too-many"})


@pytest.mark.parametrize("way", SHOWS_IN_COLUMNS)
async def test_the_next_completion_is_spoilt_once_when_that_is_ordered(tmp_path, way):
    engine = SpoilingEngine(ScriptedEngine(), tmp_path, "inference_worker-0")

    async def completion():
        (chunk,) = [chunk async for chunk in engine.generate("r", [1, 2, 3], SamplingParams(seed=5))]
        return chunk

    before = await completion()
    order(tmp_path, "inference_worker-0", way)
    order(tmp_path, "inference_worker-1", way)
    spoilt = await completion()
    assert spoilt != before
    columns = spoilt.columns
    assert (
        not len(columns)
        or structure_fault(columns)
        or number_fault(columns.ids_array(), columns.logprobs_array(), 1000)
    )
    assert await completion() == before


# ---------------------------------------------------------------- beside a run
