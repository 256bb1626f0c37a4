"""Runs that trim their log at every checkpoint: killed in parts and as a whole they lose nothing, and count what a
whole log counts."""

from __future__ import annotations

import re

import pytest
from support.live_run import ROOT

from areal_actors.messages import (
    ActorStarted,
    BatchFormed,
    LogTrimmed,
    SnapshotRefused,
    SnapshotStored,
    StepCompleted,
    TrajectoryExported,
    WeightsPublished,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PATIENT = 300.0
"""Seconds for what takes two on an idle machine."""
STEPS = 40
"""Enough that a run is not over before a kill reaches it: on an idle machine a step takes a tenth of a second."""
TRIMMED = (f"steps={STEPS}", "checkpoint.every_steps=2", "log.max_mb=0", "evaluation.tasks=0")

UNTRIMMED = "log.max_mb=1000"
"""A log for a second life: it is not read from its beginning, and trimmed messages are gone."""


def whole_log(*parts):
    """Messages received from one log in several lives, by sequence."""
    together = {sequence: message for part in parts for sequence, message in part}
    assert sorted(together) == list(range(1, len(together) + 1)), "an event was heard by nobody"
    return [together[sequence] for sequence in sorted(together)]


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


def assert_nothing_was_lost_or_trained_twice(events, steps):
    assert [event.step for event in of(events, StepCompleted)] == list(range(1, steps + 1))
    batches = of(events, BatchFormed)
    assert [batch.step for batch in batches] == list(range(steps))
    members = [member.episode for batch in batches for group in batch.groups for member in group]
    assert len(members) == len(set(members))
    exported = [event.trajectory.episode for event in of(events, TrajectoryExported)]
    assert len(exported) == len(set(exported))
    assert set(members) <= set(exported)
    checksums = {}
    for event in of(events, WeightsPublished):
        assert checksums.setdefault(event.weight_version, event.location.checksum) == event.location.checksum
    assert set(checksums) == set(range(steps + 1))


def totals(summary):
    """Numbers that a summary counts."""
    return re.findall(r"(\d+ of \d+) in|([\d,]+) episodes exported", summary)


async def test_a_trimmed_run_survives_the_death_of_every_process_and_continues_after_its_own(live):
    run = live(*TRIMMED)
    async with run.listening(PATIENT):
        await run.until(LogTrimmed, 1, PATIENT)
        for steps, process in ((6, "control"), (7, "trainer"), (8, "gateway"), (8, "inference_worker"), (9, "control")):
            await run.until(StepCompleted, steps, PATIENT)
            run.kill(process)
        await run.until(StepCompleted, 10, PATIENT)
        await run.until(LogTrimmed, 2, PATIENT)
        first_life = list(run.events)
    run.process.kill()
    run.resume(UNTRIMMED)
    assert await run.ended(PATIENT) == 0, run.output()
    left = await run.log()
    assert left[0][0] > 1, "the log was trimmed"
    events = whole_log(first_life, left)
    assert_nothing_was_lost_or_trained_twice(events, STEPS)
    assert of(events, SnapshotRefused) == []
    summary = (run.folder / "summary.txt").read_text()
    assert totals(summary) == [(f"{STEPS} of {STEPS}", ""), ("", f"{len(of(events, TrajectoryExported)):,}")]
    assert f"the log begins at event {left[0][0]:,}; earlier events were trimmed at step" in " ".join(summary.split())
    assert run.processes_left() == []


async def test_a_damaged_snapshot_is_named_and_the_actor_continues_from_the_one_before(live):
    run = live(*TRIMMED)
    async with run.listening(PATIENT):
        await run.until(LogTrimmed, 1, PATIENT)
        stored = {event.after for event in run.received(SnapshotStored) if event.fold == "batcher-0"}
        newest = run.folder / "snapshots" / f"batcher-0-{max(stored)}.msgpack"
        content = bytearray(newest.read_bytes())
        content[-1] ^= 1
        newest.write_bytes(content)
        run.kill("control")
        (refused,) = await run.until(SnapshotRefused, 1, PATIENT)
        assert refused.fold == "batcher-0"
        assert newest.name in refused.reason
        assert await run.ended(PATIENT) == 0, run.output()
        received = list(run.events)
    assert_nothing_was_lost_or_trained_twice(whole_log(received, await run.log()), STEPS)
    assert "snapshot of batcher-0 refused" in run.output()
    assert (
        len([event for event in of([message for _, message in received], ActorStarted) if event.actor == "batcher-0"])
        == 2
    )


async def test_a_trimmed_run_that_learns_from_examples_and_loses_its_trainer_continues(live):
    examples = (
        "run=gsm8k-grpo",
        "profile=embedded",
        "warm_start.steps=0",
        "warm_start.tail_steps=0",
        "trainer.batch_size=4",
    )
    run = live(*TRIMMED, *examples, recipe=ROOT / "recipes" / "sft.toml", small=False)
    async with run.listening(PATIENT):
        await run.until(LogTrimmed, 1, PATIENT)
        run.kill("trainer")
        await run.until(StepCompleted, 9, PATIENT)
        received = list(run.events)
    run.process.kill()
    run.resume(UNTRIMMED)
    assert await run.ended(PATIENT) == 0, run.output()
    events = whole_log(received, await run.log())
    assert [event.step for event in of(events, StepCompleted)] == list(range(1, STEPS + 1))
    assert run.processes_left() == []
