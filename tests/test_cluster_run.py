"""Whole runs over a cluster of three NATS servers, which loses the leader of the log, or its majority, while they
train."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.live_run import PATIENT, LiveRun
from support.nats_cluster import NatsCluster

from areal_actors.messages import BusRestarted, EpisodeAbandoned, RunFinished, StepCompleted

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
RUN = "gsm8k-grpo"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    async with NatsCluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_run_does_its_exact_steps_though_the_leader_or_the_majority_is_killed(
    cluster: NatsCluster, tmp_path: Path, lost: int
) -> None:
    run = LiveRun(tmp_path / "runs", f"bus.url={cluster.url}", "bus.replicas=3", "steps=16")
    try:
        async with run.listening():
            await run.until(StepCompleted, 4)
            leader = await cluster.leader(RUN)
            gone = [leader, *(name for name in cluster.names if name != leader)][:lost]
            for name in gone:
                cluster.kill(name)
            if lost == 1:
                await run.until(StepCompleted, 8)
            for name in gone:
                cluster.start(name)
            assert await run.ended() == 0, run.output()
            async with asyncio.timeout(PATIENT):
                while not run.received(RunFinished):  # noqa: ASYNC110 - it is read from the cluster
                    await asyncio.sleep(0.05)
    finally:
        run.abort()
    assert [event.step for event in run.received(StepCompleted)] == list(range(1, 17))
    assert not [event for event in run.received(EpisodeAbandoned) if not event.work.attempts_left]
    assert f"stream AREAL_{RUN}_LOG" in run.received(BusRestarted)[0].reason
    assert "NATS cluster without a leader for" in run.output()
