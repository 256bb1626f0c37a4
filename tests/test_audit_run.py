"""The audit of real runs: sound whatever happened to them, their versions proved, and every way to spoil their logs
named."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import pytest
from support.audit_logs import audited, changed, place
from support.live_run import BY_SUBJECT, ROOT
from test_audit_mutations import exported_otherwise, inserted, with_group, with_members, without
from test_resume import EXAMPLES

from areal_actors.cli import main
from areal_actors.core.values import WeightsLocation
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    CheckpointCommitted,
    RunFinished,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_bus.recorded import read_log

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OTHER = WeightsLocation(folder="w", checksum="ff", model="m")


def spoilt(log):
    """Name, spoilt log and the check that is to find it; places are those of this log."""
    batch, step, grant = place(log, BatchFormed, 1), place(log, StepCompleted, 1), place(log, CapacityGranted, 1)
    export, published = place(log, TrajectoryExported, 1), place(log, WeightsPublished, 1)
    trained = log[place(log, BatchFormed)].groups[0][0].episode
    dropped = TrajectoryDropped(episode=trained, group=trained.partition(".")[0], reason="stale")
    first = log[batch].groups[0]
    moved = (msgspec.structs.replace(first[0], sequence=first[0].sequence - 1), *first[1:])
    yield "an event is missing", (log, [*range(1, 50), *range(51, len(log) + 2)]), "gap"
    yield "a grant is lost", without(log, grant), "grant"
    yield "a grant is repeated", inserted(log, grant + 1, log[grant]), "grant"
    yield "an export is lost", without(log, export), "batch"
    yield (
        "a trajectory has other tokens",
        [*log[:export], exported_otherwise(log[export]), *log[export + 1 :]],
        "sequences",
    )
    yield "a batch is lost", without(log, batch), "step"
    yield "a batch is repeated", inserted(log, batch + 1, log[batch]), "batch"
    yield "a group is trained twice", with_group(log, 1, place(log, BatchFormed)), "twice"
    yield "a trajectory is twice in a batch", with_members(log, lambda group: (*group, group[0])), "twice"
    yield "a trajectory is left out of its batch", with_members(log, lambda group: group[:-1]), "lost"
    yield "a group is left out of its batch", changed(log, batch, groups=log[batch].groups[1:]), "lost"
    yield "a batch names another place", changed(log, batch, groups=(moved, *log[batch].groups[1:])), "batch"
    yield (
        "the batcher counts one twice",
        changed(log, batch, trained_trajectories=log[batch].trained_trajectories + 1),
        "count",
    )
    yield "what was trained is dropped", inserted(log, place(log, WeightsPublished, 2), dropped), "twice"
    yield "a step is lost", without(log, step), "step"
    yield "a step is taken twice", inserted(log, step + 1, log[step]), "step"
    yield "a step had other rows", changed(log, step, sequences_checksum="00000000"), "sequences"
    yield "a version is lost", without(log, published), "version"
    yield (
        "a version has two checksums",
        inserted(log, published + 1, msgspec.structs.replace(log[published], location=OTHER)),
        "checksum",
    )
    yield "other weights were loaded", changed(log, place(log, WeightsLoaded, 1), checksum="ff"), "checksum"
    yield "a checkpoint names another batch", changed(log, place(log, CheckpointCommitted), cursor=1), "checkpoint"
    yield "the run counts other steps", changed(log, place(log, RunFinished, -1), steps=6), "end"


async def command(run, capsys, *words):
    """Exit status of a command and what it prints."""
    capsys.readouterr()
    status = await asyncio.to_thread(main, [*words, "--folder", str(run.folder.parent)])
    return status, capsys.readouterr().out


async def audit(run, capsys, *words):
    """Exit status and report."""
    return await command(run, capsys, "audit", *words)


async def test_a_run_of_two_lives_with_other_settings_and_a_killed_trainer_is_proved_and_its_spoilt_logs_are_not(
    live, capsys, tmp_path
):
    run = live("steps=7", "checkpoint.every_steps=3", "evaluation.tasks=0", "trainer.microbatch_tokens=1024")
    async with run.listening(120):
        await run.until(StepCompleted, 2, 300)
        run.kill("trainer")
        await run.until(StepCompleted, 4, 300)
        os.kill(run.process.pid, signal.SIGINT)
        assert await run.ended() == 130, run.output()
    run.resume("trainer.microbatch_tokens=4096")
    assert await run.ended() == 0, run.output()
    assert run.output().splitlines()[-1] == "audit: 0 lost, 0 twice, 8 of 8 versions compared"
    status, report = await audit(run, capsys, run.folder.name, "--recompute")
    assert status == 0, report
    assert report.splitlines()[-1] == "audit: 0 lost, 0 twice, 8 of 8 versions proved"
    exported = tmp_path / "run.log"
    await command(run, capsys, "export", run.folder.name, str(exported))
    status, again = await audit(run, capsys, str(exported))
    assert status == 0, again
    assert again.splitlines()[:-2] == report.splitlines()[:-2], "the file has what the run has"
    log = [envelope.open(BY_SUBJECT[envelope.subject]) for envelope in read_log(exported)]
    assert audited(log).all_faults() == []
    found = {}
    for name, mutated, check in spoilt(log):
        events, numbers = mutated if isinstance(mutated, tuple) else (mutated, None)
        faults = audited(events, numbers=numbers).all_faults()
        found[name] = check in {fault.check for fault in faults}
    assert len(found) > 20
    assert [name for name, named in found.items() if not named] == []


async def test_a_run_that_learns_from_examples_is_proved_by_its_steps(live, capsys):
    run = live("steps=6", "checkpoint.every_steps=4", *EXAMPLES, recipe=ROOT / "recipes" / "sft.toml", small=False)
    async with run.listening(120):
        await run.until(StepCompleted, 3, 300)
    run.process.kill()
    run.resume()
    assert await run.ended() == 0, run.output()
    status, report = await audit(run, capsys, run.folder.name, "--recompute")
    assert status == 0, report
    assert report.splitlines()[-1] == "audit: 0 lost, 0 twice, 6 of 6 steps proved"


async def test_a_live_run_is_sound_and_a_log_file_that_was_cut_or_damaged_has_a_fault_with_its_place(
    live, capsys, tmp_path
):
    run = live("steps=500", "evaluation.tasks=0")
    async with run.listening(120):
        await run.until(StepCompleted, 2, 300)
        status, report = await audit(run, capsys, run.folder.name)
        assert status == 0, report
        assert "live or killed" in report
        os.kill(run.process.pid, signal.SIGINT)
        assert await run.ended() == 130, run.output()
    whole = tmp_path / "whole.log"
    await command(run, capsys, "export", run.folder.name, str(whole))
    content = whole.read_bytes()
    cut, flipped = tmp_path / "cut.log", tmp_path / "flipped.log"
    cut.write_bytes(content[:-10])
    middle = content.index(b"trajectory.exported") + 400
    flipped.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    status, report = await audit(run, capsys, str(cut))
    assert status == 1
    assert "the log cannot be read further" in report
    assert "ends in the middle of an entry" in report
    status, report = await audit(run, capsys, str(flipped))
    assert status == 1
    assert "the checksum does not match" in report or "cannot be read further" in report


def test_a_folder_that_is_neither_a_run_nor_a_log_is_reported(capsys, tmp_path):
    assert main(["audit", "nothing", "--folder", str(tmp_path)]) == 1
    assert (
        "has no run 'nothing', and no run's folder or log file has that path; there is no run"
        in capsys.readouterr().err
    )
    (tmp_path / "text").write_text("hello")
    assert main(["audit", str(tmp_path / "text"), "--folder", str(tmp_path)]) == 1
    assert "is not a recording (a log or a tape)" in capsys.readouterr().out
