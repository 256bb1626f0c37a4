"""Runs that are killed and whose files are then damaged, moved or short of disk: real processes, real kill -9, a real
full disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from support.live_run import LiveRun
from test_resume import assert_every_step_was_taken_once, events_of, of

from areal_actors.messages import (
    CheckpointCommitted,
    CheckpointDamaged,
    DiskLow,
    RunFinished,
    RunResumed,
    StepCompleted,
    WeightsPublished,
)
from areal_actors.weights.folders import lock_path, shared_memory_path

pytestmark = pytest.mark.long

COUNT = 40
"""Steps: enough that a run is not over before what is done to it reaches it."""
STEPS = (f"steps={COUNT}", "checkpoint.every_steps=2", "evaluation.tasks=0")
RESUME_SECONDS = 240


async def killed(run, steps):
    """Kill -9 of the launcher, and with it of everything, after this number of steps."""
    async with run.listening(120):
        await run.until(StepCompleted, steps, 180)
    run.process.kill()
    run.process.wait()


def kept(run):
    """Folders of checkpoints, oldest first."""
    found = [path for path in (run.folder / "checkpoints").glob("step-*") if (path / "manifest.json").exists()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def moved(run, name):
    """The run's folder elsewhere and under another name."""
    there = run.folder.parent / "elsewhere" / name
    there.parent.mkdir()
    run.folder.rename(there)
    run.folder = there


async def test_a_killed_run_that_was_moved_and_whose_newest_checkpoint_is_damaged_comes_to_the_same_weights(live):
    run = live(*STEPS)
    await killed(run, 5)
    left = shared_memory_path("gsm8k-grpo", run.folder)
    assert lock_path(left).exists()
    moved(run, "renamed")
    *_, before, newest = kept(run)
    flip(newest / "trainer_state.pt")
    run.resume()
    assert await run.ended(RESUME_SECONDS) == 0, run.output()
    assert "removed bus credentials of run 'renamed', which has ended: bus.json" in run.output()
    assert not left.exists()
    events = await events_of(run)
    (damaged,) = of(events, CheckpointDamaged)
    assert (damaged.step, damaged.weight_version) == tuple(
        int(path.name.removeprefix("step-")) for path in (newest, before)
    )
    assert "trainer_state.pt has digest" in damaged.reason
    assert (run.folder / damaged.folder / "trainer_state.pt").exists()
    assert_every_step_was_taken_once(events, COUNT)
    assert "damaged, set aside as checkpoints/set-aside-step-" in run.output()
    assert "set aside" in " ".join((run.folder / "summary.txt").read_text().split())
    assert not any(str(run.folder.parent.parent) in str(event) for event in of(events, CheckpointCommitted))


async def test_without_any_checkpoint_left_a_run_is_trained_again_from_its_log(live):
    run = live(*STEPS)
    await killed(run, 5)
    for folder in kept(run):
        shutil.rmtree(folder)
    run.resume()
    assert await run.ended(RESUME_SECONDS) == 0, run.output()
    events = await events_of(run)
    assert {event.folder for event in of(events, CheckpointDamaged)} == {""}
    assert of(events, CheckpointDamaged)[-1].weight_version == 0
    assert_every_step_was_taken_once(events, COUNT)


async def test_a_run_goes_back_to_the_checkpoint_that_is_named(live):
    run = live(*STEPS)
    await killed(run, 5)
    first, *later = kept(run)
    run.resume("--from", "step-3")
    assert await run.ended() == 1
    assert f"has no checkpoint 'step-3'; kept: {first.name}, " in run.output()
    run.resume("--from", first.name)
    assert await run.ended(RESUME_SECONDS) == 0, run.output()
    events = await events_of(run)
    (resumed,) = of(events, RunResumed)
    assert (resumed.from_step, of(events, CheckpointDamaged)) == (int(first.name.removeprefix("step-")), [])
    assert all((run.folder / "checkpoints" / f"left-{path.name}").is_dir() for path in later)
    assert_every_step_was_taken_once(events, COUNT)


async def test_a_model_that_was_changed_ends_a_resumed_run_with_both_checksums(live):
    """The weights that all began with are compared with the log, too: there is no checkpoint yet."""
    run = live(*STEPS[:1], "checkpoint.every_steps=0", "evaluation.tasks=0")
    await killed(run, 2)
    flip(run.folder / "model" / "model.safetensors")
    run.resume()
    assert await run.ended(RESUME_SECONDS) == 1
    assert "step 0 was taken again and has weights" in run.output()
    assert "Traceback" not in run.output()
    published = of(await events_of(run), WeightsPublished)
    assert len({event.location.checksum for event in published if event.weight_version == 0}) == 1


async def test_a_second_run_of_the_same_name_is_refused_and_the_first_continues(live, tmp_path):
    run = live("steps=5000", "evaluation.tasks=0")
    async with run.listening(120):
        await run.until(WeightsPublished, 1, 180)
        second = LiveRun.__new__(LiveRun)
        second.folder, second.output_file = run.folder, tmp_path / "second.txt"
        second._command("run", "recipes/gsm8k_grpo.toml", f"folder={run.folder.parent}", "profile=embedded", "steps=1")
        assert await second.ended(RESUME_SECONDS) == 1
        assert f"run 'gsm8k-grpo' is running (process {run.process.pid})" in second.output()
        await run.until(StepCompleted, len(run.received(StepCompleted)) + 2, RESUME_SECONDS)
    assert [path.name for path in run.folder.parent.iterdir() if path.is_dir()] == ["gsm8k-grpo"]


# ------------------------------------------------------------ a disk that fills


@pytest.fixture
def disk(tmp_path):
    """A disk of 64 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if (
        os.geteuid()
        or mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run([shutil.which("umount"), "-l", place], check=True)


def fill(disk, leave):
    """Fill the disk, but for this number of MiB."""
    free = shutil.disk_usage(disk).free - (leave << 20)
    with (disk / "filling").open("wb", buffering=0) as file:
        try:
            for _ in range(max(free, 0) >> 16):
                file.write(bytes(1 << 16))
        except OSError:
            pass


@pytest.mark.parametrize(
    ("settings", "leave", "words"),
    [("disk.min_free_mb=20", 15, "MiB are free on the disk"), ("disk.min_free_mb=0", 0, "is full")],
)
async def test_a_disk_that_fills_ends_the_run_with_a_sentence_and_tears_nothing(disk, settings, leave, words):
    run = LiveRun(disk, *STEPS, settings)
    try:
        async with run.listening(120):
            await run.until(StepCompleted, 3, 180)
            fill(disk, leave)
            assert await run.ended(RESUME_SECONDS) == 1, run.output()
        output = run.output()
        assert words in output, output
        assert "Traceback" not in output
        for line in (run.folder / "metrics.jsonl").read_text().splitlines():
            json.loads(line)
        json.loads((run.folder / "recipe.json").read_bytes())
        assert not list((run.folder / "checkpoints").glob(".writing-*"))
        (disk / "filling").unlink()
        run.resume()
        assert await run.ended(RESUME_SECONDS) == 0, run.output()
        events = await events_of(run)
        assert_every_step_was_taken_once(events, COUNT)
        assert len(of(events, DiskLow)) == (1 if leave else 0)
        if leave:
            assert "the checkpoint of step" in of(events, RunFinished)[0].error
    finally:
        run.abort()
