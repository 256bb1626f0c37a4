"""Gateways of another host: joined, lost and taken over, in real processes that share only the network."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.authority import Authority
from support.joined_runs import Start, invited, runs_beside
from support.live_run import PATIENT, LiveRun
from support.other_host import ISOLATED, Joiner, OtherHost

from areal_actors.messages import (
    ActorStarted,
    BatchFormed,
    EpisodeAbandoned,
    LogTrimmed,
    SnapshotRefused,
    StepCompleted,
    TrajectoryExported,
    WorkerJoined,
    WorkerLeft,
)

pytestmark = pytest.mark.long
ELSEWHERE = ("gateway.joined=1", "actors.rollout_worker.count=0", "actors.inference_worker.count=0")
"""Agents, engine and the only gateway are on the other host; trainer, rewards and control plane on this one."""
ROLES = ("inference_worker", "rollout_worker", "gateway")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[OtherHost]:
    with OtherHost(tmp_path / "other", hidden=tmp_path / "runs") as host:
        yield host


@pytest.fixture
def live(tmp_path: Path, other: OtherHost) -> Iterator[Start]:
    with runs_beside(other, tmp_path / "runs") as start:
        yield start


async def join(run: LiveRun, other: OtherHost, *roles: str) -> list[Joiner]:
    """Have workers of these roles join from the other host, with a copy of the run's credential."""
    credential = await invited(run, other)
    return [other.join("--credential", str(credential), "--role", role) for role in roles]


async def until(run: LiveRun, condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENT
    while not condition():
        assert run.process.poll() is None, run.output()
        assert time.monotonic() < end, f"{what}: {run.output()}"
        await asyncio.sleep(0.02)


def served_by(run: LiveRun, gateway: str) -> list[str]:
    """The processes that have served a gateway so far."""
    return [event.process for event in run.received(ActorStarted) if event.actor == gateway]


async def assert_exact(run: LiveRun, steps: int) -> None:
    """The run has done its steps, each once; no episode was lost, and none exported twice."""
    log = [event for _, event in await run.log()]
    assert [event.step for event in log if isinstance(event, StepCompleted)] == list(range(1, steps + 1))
    assert not [event for event in log if isinstance(event, EpisodeAbandoned) and not event.work.attempts_left]
    exported = [event.trajectory.episode for event in log if isinstance(event, TrajectoryExported)]
    assert len(exported) == len(set(exported))
    gone = {event.worker for event in log if isinstance(event, WorkerLeft)}
    assert gone == {event.worker for event in log if isinstance(event, WorkerJoined)}


async def test_agents_engine_and_the_only_gateway_are_on_another_host(live, other):
    run = live("steps=6", *ELSEWHERE)
    joiners = await join(run, other, *ROLES, "gateway")
    async with run.listening():
        assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
    assert [joiner.ended() for joiner in joiners] == [0, 0, 0, 0]
    assert len([joiner for joiner in joiners if "as a spare" in joiner.output()]) == 1
    await assert_exact(run, 6)
    (gateway,) = [event for event in run.received(WorkerJoined) if event.role == "session_manager"]
    assert gateway.actor == "session_manager-0"
    assert served_by(run, gateway.actor) == [gateway.worker]
    assert not (run.folder / "logs" / "gateway.out").exists()


async def test_a_gateway_of_another_host_encrypts_with_a_certificate_of_that_host(live, other, tmp_path):
    """Agents are on that host, too, where its name is localhost; the certificate of the run's own gateway is for
    another name."""
    authority, there = Authority(), other.folder
    (tmp_path / "own").mkdir()
    own, issued = authority.issue(tmp_path / "own", "run.example"), authority.issue(there, "localhost")
    files = (
        f"gateway.certificate={own.certificate}",
        f"gateway.certificate_key={own.key}",
        "gateway.advertise=run.example",
    )
    run = live("steps=3", *ELSEWHERE, *files)
    credential = str(await invited(run, other))
    plain = other.join("--credential", credential, "--role", "gateway")
    assert plain.ended() == 1
    assert (
        "its gateways encrypt (gateway.certificate), each with a certificate of its own host: add --set"
        in plain.output()
    )
    here = (
        f"certificate={issued.certificate.name}",
        f"certificate_key={issued.key.name}",
        "host=0.0.0.0",
        "advertise=localhost",
    )
    words = [word for setting in here for word in ("--set", f"gateway.{setting}")]
    joiners = [
        other.join("--credential", credential, "--role", "gateway", *words),
        other.join("--credential", credential, "--role", "inference_worker"),
        other.join("--credential", credential, "--role", "rollout_worker", SSL_CERT_FILE=str(authority.file(there))),
    ]
    place = (other.address, json.loads((run.folder / "recipe.json").read_text())["gateway"]["port"])
    async with run.listening():
        await run.until(TrajectoryExported, 1)
        assert await asyncio.to_thread(ssl.get_server_certificate, place) == issued.certificate.read_text()
        assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
    assert [joiner.ended() for joiner in joiners] == [0, 0, 0]
    await assert_exact(run, 3)
    (gateway,) = [event for event in run.received(WorkerJoined) if event.role == "session_manager"]
    assert served_by(run, gateway.actor) == [gateway.worker]


async def test_a_killed_gateway_of_another_host_is_replaced_there(live, other):
    run = live("steps=8", *ELSEWHERE)
    joiners = await join(run, other, *ROLES)
    async with run.listening():
        await run.until(StepCompleted, 2)
        await run.until(TrajectoryExported, len(run.received(TrajectoryExported)) + 5)
        joiners[-1].worker().kill()
        assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
    assert [joiner.ended() for joiner in joiners] == [0, 0, 0]
    await assert_exact(run, 8)
    first, second = [event.worker for event in run.received(WorkerJoined) if event.role == "session_manager"]
    assert served_by(run, "session_manager-0") == [first, second]
    (left,) = [event for event in run.received(WorkerLeft) if event.worker == first]
    assert (left.reason, left.actor) == ("killed by SIGKILL", "session_manager-0")
    assert {event.reason for event in run.received(EpisodeAbandoned) if event.reason != "surplus"} <= {
        "gateway",
        "session",
    }


async def test_a_lost_gateway_of_another_host_is_taken_over_by_the_runs_own_and_one_that_leaves_by_a_spare(live, other):
    run = live(
        "steps=100000",
        "evaluation.tasks=0",
        "actors.session_manager.count=2",
        "gateway.joined=1",
        "watchdog.heartbeat_seconds=6",
    )
    (first,) = await join(run, other, "gateway")
    async with run.listening():
        await run.until(StepCompleted, 2)
        (spare,) = await join(run, other, "gateway")
        await until(run, lambda: "as a spare" in spare.output(), "no spare")
        first.process.terminate()
        assert first.ended() == 0
        await until(run, lambda: len(served_by(run, "session_manager-1")) == 2, "the spare serves nothing")
        leaving, second = [event.worker for event in run.received(WorkerJoined)]
        assert [(event.worker, event.reason) for event in run.received(WorkerLeft)] == [(leaving, "")]
        await run.until(StepCompleted, len(run.received(StepCompleted)) + 2)
        for process in (spare.process, spare.worker()):
            process.kill()
        await until(run, lambda: len(served_by(run, "session_manager-1")) == 3, "nobody has taken the gateway over")
        assert served_by(run, "session_manager-1") == [leaving, second, "gateway-1"]
        assert "no heartbeat for" in run.received(WorkerLeft)[-1].reason
        exported = len([event for event in run.received(TrajectoryExported) if int(event.trajectory.group) % 2])
        await until(
            run,
            lambda: (
                len([event for event in run.received(TrajectoryExported) if int(event.trajectory.group) % 2])
                > exported + 4
            ),
            "no group of the gateway that was taken over is exported",
        )
        await run.until(StepCompleted, len(run.received(StepCompleted)) + 2)
        run.process.terminate()
        assert await run.ended() == 130, run.output()
    await assert_exact(run, len(run.received(StepCompleted)))


@pytest.mark.skipif(not ISOLATED, reason="needs network namespaces")
@pytest.mark.parametrize("lease_seconds", [6, 300])
async def test_the_cable_of_the_host_with_the_gateway_is_pulled_for_20_seconds(live, other, lease_seconds):
    run = live("steps=10", f"watchdog.heartbeat_seconds={lease_seconds}", *ELSEWHERE)
    joiners = await join(run, other, *ROLES)
    async with run.listening():
        await run.until(StepCompleted, 3)
        other.pull_cable(out=True)
        await asyncio.sleep(20.0)
        other.pull_cable(out=False)
        assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
    assert [joiner.ended() for joiner in joiners] == [0, 0, 0]
    await assert_exact(run, 10)
    (gateway,) = [event.worker for event in run.received(WorkerJoined) if event.role == "session_manager"]
    if lease_seconds == 300:
        assert len(run.received(WorkerJoined)) == 3
        assert served_by(run, "session_manager-0") == [gateway]
    else:  # in its absence the run's own host has taken the gateway over
        assert len(run.received(WorkerJoined)) == 5
        assert served_by(run, "session_manager-0") == [gateway, "gateway"]


async def test_a_resumed_run_waits_for_a_gateway_of_another_host_again(live, other):
    run = live("steps=100000", "watchdog.bus_seconds=5", "evaluation.tasks=0", "gateway.joined=1")
    (joiner,) = await join(run, other, "gateway")
    async with run.listening():
        await run.until(StepCompleted, 2)
        run.process.kill()
        assert joiner.ended() == 1
    (run.folder / "join.json").unlink(missing_ok=True)
    run.resume()
    (joiner,) = await join(run, other, "gateway")
    async with run.listening():
        await until(run, lambda: len(served_by(run, "session_manager-0")) == 2, "no gateway has joined again")
        assert served_by(run, "session_manager-0") == ["session_manager-10000", "session_manager-10001"]
        await run.until(StepCompleted, len(run.received(StepCompleted)) + 2)
        run.process.terminate()
        assert await run.ended() == 130, run.output()
    assert joiner.ended() == 1
    log = [event.step for _, event in await run.log() if isinstance(event, StepCompleted)]
    assert set(log) == set(range(1, max(log) + 1))


@pytest.mark.parametrize("successor", ["session_manager-10003", "the run's own gateway"])
async def test_the_successor_of_a_killed_gateway_goes_on_from_its_snapshot_in_a_trimmed_log(live, other, successor):
    settings = (
        "steps=40",
        "evaluation.tasks=0",
        "checkpoint.every_steps=2",
        "log.max_mb=0",
        "watchdog.heartbeat_seconds=6",
    )
    run = live(*settings, *ELSEWHERE)
    joiners = await join(run, other, *ROLES)
    async with run.listening():
        await run.until(LogTrimmed, 2)
        *_, gateway = joiners
        for process in [gateway.process] * (successor == "the run's own gateway") + [gateway.worker()]:
            process.kill()
        await until(run, lambda: len(served_by(run, "session_manager-0")) == 2, "nobody serves the gateway")
        first = run.received(LogTrimmed)[-1].first
        await until(run, lambda: run.received(LogTrimmed)[-1].first > first, "the log is not trimmed any more")
        assert await run.ended() == 0, run.output() + "".join(joiner.output() for joiner in joiners)
        received = dict(run.events)
    assert served_by(run, "session_manager-0")[1:] == [successor.rpartition(" ")[2]]
    assert not run.received(SnapshotRefused)
    left = dict(await run.log())
    assert min(left) > 1
    log = [event for _, event in sorted({**received, **left}.items())]
    assert [event.step for event in log if isinstance(event, StepCompleted)] == list(range(1, 41))
    exported = [event.trajectory.episode for event in log if isinstance(event, TrajectoryExported)]
    assert len(exported) == len(set(exported))
    trained = [
        one.episode for event in log if isinstance(event, BatchFormed) for group in event.groups for one in group
    ]
    assert len(trained) == len(set(trained))
    assert set(trained) <= set(exported)
