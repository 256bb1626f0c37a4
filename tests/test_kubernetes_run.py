"""A run on a stand-in for Kubernetes, with real processes: its decisions add and remove workers through the API
server."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from support.kubernetes_cluster import Cluster
from support.live_run import PATIENT, SMALL, LiveRun
from test_launch import manifests, mounted
from test_launch_run import slow_rewards, start, started

from areal_actors.core.free_ports import find_free_ports
from areal_actors.messages import ScaleDecided, StepCompleted, WorkerJoined, WorkerLeft

pytestmark = pytest.mark.long
__all__ = ["started"]
RUN, ADDED = "areal-gsm8k-grpo-run", "areal-gsm8k-grpo-added-reward"


async def until(what: Callable[[], object], cluster: Cluster) -> None:
    deadline = time.monotonic() + PATIENT
    while not what():
        assert time.monotonic() < deadline, cluster.output("follower") + cluster.output("areal")
        await asyncio.sleep(0.05)


async def test_decisions_of_a_run_add_and_remove_pods(tmp_path, started, capsys, monkeypatch):
    home, there, runs, account = (tmp_path / name for name in ("home", "areal", "runs", "account"))
    for folder in (home, there, account):
        folder.mkdir()
    monkeypatch.chdir(home)
    ports = [f"{name}={find_free_ports()}" for name in ("bus.port", "bus.objects_port", "gateway.port")]
    rewards = [word.replace(f"{home}/", "") for word in slow_rewards(home)]
    found = manifests(capsys, *SMALL, "hosts.image=areal", "steps=100000", *ports, *rewards, recipe="gsm8k_grpo")
    mounted(found, there)

    def container(command: list[str], output: Path, variables: Mapping[str, str]) -> psutil.Popen:
        placed = [word.replace(RUN, socket.gethostname()).replace("folder=/runs", f"folder={runs}") for word in command]
        return start(
            started, [str(Path(sys.executable).with_name(placed[0])), *placed[1:]], output, cwd=str(there), **variables
        )

    cluster = Cluster(list(found.values()), account, container)
    cluster.refusing = 503
    async with cluster.running():
        await until(lambda: cluster.pods[RUN], cluster)
        run = LiveRun.__new__(LiveRun)
        run.folder, run.output_file, run.process, run.events = (
            runs / "gsm8k-grpo",
            account / "2-areal.log",
            cluster.pods[RUN][0],
            [],
        )
        async with run.listening():
            await run.until(ScaleDecided, 1)
            await until(lambda: cluster.requests, cluster)
            cluster.refusing = 0
            joined, *_ = await run.until(WorkerJoined, 1)
            assert joined.role == "reward_worker"

            # a follower that is started again does nothing again
            for process in (*cluster.sidecars[-1].children(recursive=True), cluster.sidecars[-1]):
                process.kill()
            read = len(cluster.requests)
            await until(lambda: cluster.requests[read:], cluster)
            await run.until(StepCompleted, len(run.received(StepCompleted)) + 3)
            await until(lambda: cluster.numbers[-1] == run.received(ScaleDecided)[-1].workers - 1, cluster)
            decided = iter([one.workers - 1 for one in run.received(ScaleDecided)])
            assert all(number in decided for number in cluster.numbers), "each follows a decision, in their order"

            # one that is to end has the pods leave, which do their work first
            cluster.sidecars[-1].terminate()
            await until(lambda: cluster.numbers[-1] == 0, cluster)
            left, *_ = await run.until(WorkerLeft, 1)
            assert (left.worker, left.reason) == (joined.worker, "")
            assert ADDED not in {
                name for name, job in cluster.jobs.items() if job["status"]["failed"] + job["status"]["succeeded"]
            }

            # it ends with the run
            await until(lambda: len(cluster.sidecars) == 3, cluster)
            read = len(cluster.requests)
            await until(lambda: cluster.requests[read:], cluster)
            run.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(run.process.wait, PATIENT) == 130, run.output()
        await until(lambda: all(one.poll() is not None for one in cluster.sidecars), cluster)
        assert cluster.sidecars[-1].returncode == 0, cluster.output("follower")
        await until(lambda: not run.processes_left(), cluster)
    assert cluster.jobs[ADDED]["spec"]["parallelism"] == 0
    assert {status for _, _, status in cluster.requests} == {200, 503}
    written = cluster.output("follower")
    assert f"reading Job {ADDED}: the API server answered 503, {ADDED} is refused; it is asked again" in written
    assert f"autoscale: {ADDED}: 1 pods, 0 before" in written
