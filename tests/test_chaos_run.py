"""Live runs under `[chaos]`: every step once, nothing lost, nothing trained twice, and every weight version computed
again."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter

import pytest
from support.live_run import ROOT

from areal_actors.cli import main
from areal_actors.messages import CompletionRefused, FaultInjected, RunResumed, StepCompleted

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OVERLAY = str(ROOT / "benchmarks" / "chaos.toml")


def faults(kind, count, *targets, **settings):
    words = {"per_minute": 60, "count": count, **({"targets": json.dumps(targets)} if targets else {}), **settings}
    return [f"chaos.{kind}.{key}={value}" for key, value in words.items()]


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


async def audited(run, capsys, *words):
    """Exit status and report of `areal-actors audit`."""
    status = await asyncio.to_thread(main, ["audit", run.folder.name, "--folder", str(run.folder.parent), *words])
    return status, capsys.readouterr().out


async def test_a_run_under_several_kinds_of_fault_loses_nothing_and_trains_nothing_twice(live):
    run = live(
        *(OVERLAY, "profile=embedded", "steps=14", "chaos.seed=3"),
        *faults("kill", 2, "gateway", "trainer"),
        *faults("pause", 1, "control", seconds=1.5),
        *faults("partition", 1, "rollout_worker", seconds=1.5),
        *faults("slow_disk", 1, seconds=1.5),
        *faults("bad_completion", 1, "nan"),
        small=False,
    )
    assert await run.ended() == 0, run.output()
    assert "audit: 0 lost, 0 twice" in run.output().splitlines()[-1]
    assert "FAULTS ARE INJECTED INTO THIS RUN" in run.output()
    events = [event for _, event in await run.log()]
    injected = Counter(event.kind for event in of(events, FaultInjected))
    assert injected == {"kill": 2, "pause": 1, "partition": 1, "slow_disk": 1, "bad_completion": 1}
    assert "6 faults injected" in run.output()
    assert [event.step for event in of(events, StepCompleted)] == list(range(1, 15))
    assert [event.check for event in of(events, CompletionRefused)] == ["log-probability"]
    assert run.processes_left() == []


async def test_a_run_of_which_everything_was_killed_continues_where_its_schedule_was(live, capsys):
    run = live(*(OVERLAY, "profile=embedded", "steps=16"), *faults("kill", 1, "everything"), small=False)
    assert await run.ended() == -signal.SIGKILL, run.output()
    status, report = await audited(run, capsys)
    assert status == 0, report
    assert "live or killed" in report
    run.resume()
    assert await run.ended() == 0, run.output()
    status, report = await audited(run, capsys, "--recompute")
    assert status == 0, report
    assert "audit: 0 lost, 0 twice, 17 of 17 versions proved" in report
    events = [event for _, event in await run.log()]
    assert len(of(events, RunResumed)) == 1
    assert len(of(events, FaultInjected)) == 1, "it was the only one, in all lives"
    assert [event.step for event in of(events, StepCompleted)] == list(range(1, 17))
    assert run.processes_left() == []
