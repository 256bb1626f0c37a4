"""A run whose log is damaged goes on from the good part, or refuses with what to do; nothing is trained twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

import pytest
from support.live_run import ROOT, LiveRun
from support.log_damage import GONE, HOLES, SHORTER, blocks_of, without_index

from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    CheckpointCommitted,
    EpisodeAbandoned,
    EpisodeScored,
    LogRecovered,
    RunFinished,
    RunResumed,
    StepCompleted,
    WeightsPublished,
)
from areal_actors.recovery.log_recovery import boot_id

sys.path.append(str(ROOT / "benchmarks"))

from lossy_disk import can_lose_power, lossy_disk

pytestmark = pytest.mark.long


async def killed_after(live, steps, saved=1):
    """A run with this number of trained steps and saved checkpoints."""
    run = live("steps=9", "checkpoint.every_steps=3", "evaluation.every_steps=4")
    async with run.listening(seconds=300):
        await run.until(StepCompleted, steps, seconds=300)
        await run.until(CheckpointCommitted, saved, seconds=300)
    run.process.kill()
    run.process.wait()
    while run.processes_left():  # noqa: ASYNC110 - the server ends with its parent, and writes to its store until then
        await asyncio.sleep(0.05)
    return run


def assert_trained_once(events, steps):
    assert [event.step for event in events if isinstance(event, StepCompleted)] == list(range(1, steps + 1))
    batches = [event for event in events if isinstance(event, BatchFormed)]
    assert [batch.step for batch in batches] == list(range(steps))
    members = Counter(member.episode for batch in batches for group in batch.groups for member in group)
    assert set(members.values()) == {1}
    checksums = {
        (event.weight_version, event.location.checksum) for event in events if isinstance(event, WeightsPublished)
    }
    assert len({version for version, _ in checksums}) == len(checksums) == steps + 1
    assert [event for event in events if isinstance(event, RunFinished)][-1] == RunFinished(steps=steps)


async def recovered(run, damage):
    """Damage the store of a killed run, and let it go on to its end."""
    damage(blocks_of(run.folder / "nats", "AREAL_gsm8k-grpo_LOG"))
    run.resume()
    assert await run.ended() == 0, run.output()
    events = [event for _, event in await run.log()]
    assert_trained_once(events, 9)
    assert run.processes_left() == []
    (found,) = [event for event in events if isinstance(event, LogRecovered)]
    assert f"the log of run 'gsm8k-grpo' was recovered: {found.damage}" in run.output()
    return found


@pytest.mark.parametrize("name", ["torn tail", "flipped at the tail"])
async def test_a_run_continues_from_the_good_part_of_its_log(live, name):
    run = await killed_after(live, 5)
    found = await recovered(run, HOLES[name])
    assert found.lost > 0
    assert found.set_aside[0] == "nats.damaged-1"
    assert (run.folder / "nats.damaged-1").is_dir()


async def test_checkpoints_of_steps_that_the_log_lost_are_set_aside(live):
    run = await killed_after(live, 7, saved=2)

    def cut_before_the_last_checkpoint(blocks):
        (block,) = blocks.glob("*.blk")
        content = bytearray(block.read_bytes())
        content[content.index(b"checkpoint.committed", len(content) // 8)] ^= 0xFF
        block.write_bytes(content)

    found = await recovered(run, cut_before_the_last_checkpoint)
    assert "is missing; the log is readable up to event" in found.damage
    assert "beyond-the-log-1.step-6" in found.set_aside
    assert (run.folder / "checkpoints" / "beyond-the-log-1.step-6").is_dir()


async def test_a_log_that_is_only_shorter_than_what_was_read_is_noticed(live):
    run = await killed_after(live, 5)
    found = await recovered(run, SHORTER["torn tail, no index"])
    assert "the log ends at event" in found.damage or "is missing; the log is readable up to event" in found.damage


@pytest.mark.skipif(not can_lose_power(), reason="making a disk that loses power needs root and loop devices")
async def test_a_run_continues_after_a_power_failure(tmp_path):
    with lossy_disk(tmp_path, 512) as disk:
        run = LiveRun(disk.root / "runs", "steps=9", "checkpoint.every_steps=3", "evaluation.every_steps=4")
        try:
            async with run.listening(seconds=300):
                await run.until(CheckpointCommitted, 1, seconds=300)
                await run.until(StepCompleted, 5, seconds=300)
            left = disk.lose_power()
        finally:
            run.abort()
        while run.processes_left():  # noqa: ASYNC110 - they end with their parent
            await asyncio.sleep(0.1)
        disk.come_back(left)
        noted = run.folder / "log_end.json"
        if noted.exists() and (end := noted.read_bytes()):
            noted.write_bytes(end.replace(boot_id().encode(), b"another"))
        assert (run.folder / "checkpoints" / "step-3").is_dir(), "a saved checkpoint is on the disk"
        try:
            run.resume()
            assert await run.ended() == 0, run.output()
            assert_trained_once([event for _, event in await run.log()], 9)
        finally:
            run.abort()


async def test_episodes_that_the_queue_of_work_has_lost_are_run_after_all(live):
    run = await killed_after(live, 5)
    blocks = blocks_of(run.folder / "nats", "AREAL_gsm8k-grpo_WORK")
    for block in blocks.glob("*.blk"):
        content = bytearray(block.read_bytes())
        content[::500] = bytes(byte ^ 0xFF for byte in content[::500])
        block.write_bytes(content)
    without_index(blocks)
    run.resume()
    assert await run.ended() == 0, run.output()
    events = [event for _, event in await run.log()]
    assert_trained_once(events, 9)
    (resumed,) = [event for event in events if isinstance(event, RunResumed)]
    before = events[: events.index(resumed)]
    ended = {event.work.episode for event in before if isinstance(event, EpisodeScored | EpisodeAbandoned)}
    granted = {
        str(n) for e in before if isinstance(e, CapacityGranted) for n in range(e.first_group, e.first_group + e.groups)
    }
    trained = {
        member.episode
        for event in events
        if isinstance(event, BatchFormed)
        for group in event.groups
        for member in group
    }
    again = {episode for episode in trained - ended - set(resumed.queued) if episode.partition(".")[0] in granted}
    assert again, "episodes that were granted before the damage, not queued after it, and trained"


async def test_a_run_without_a_log_refuses_and_leaves_everything_as_it_is(live):
    run = await killed_after(live, 4)
    GONE["description missing"](blocks_of(run.folder / "nats", "AREAL_gsm8k-grpo_LOG"))
    run.resume()
    assert await run.ended() == 1
    output = run.output()
    assert "run 'gsm8k-grpo' cannot be resumed: there is no log to resume from" in output
    assert "step-3" in output
    assert "Traceback" not in output
    assert (run.folder / "checkpoints" / "step-3").is_dir()
    assert json.loads((run.folder / "recipe.json").read_bytes())["run"] == "gsm8k-grpo"
    assert ROOT.is_dir()
