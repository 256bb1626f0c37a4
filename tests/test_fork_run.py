"""Forks of real runs: equal where the settings are, killed and resumed, audited, replayed and verified."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from support.live_run import BY_SUBJECT, PATIENT, RECIPE, ROOT, SMALL

from areal_actors.cli import main
from areal_actors.messages import BatchFormed, RunForked, TrajectoryDropped, TrajectoryExported, WeightsPublished
from areal_bus.recorded import read_log

pytestmark = pytest.mark.long
STEPS, AT = 6, 2
SETTINGS = (f"steps={STEPS}", "checkpoint.every_steps=2", "checkpoint.keep_last=2", "evaluation.tasks=0")


def areal(*words):
    return subprocess.run(
        [sys.executable, "-m", "areal_actors", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )


def run(folder, name, *settings):
    fixed = [*SMALL, *SETTINGS, f"run={name}", f"folder={folder}"]
    ended = areal("run", str(RECIPE), *fixed, *settings)
    assert ended.returncode == 0, ended.stderr


def fork(folder, name, step, *words):
    return areal("fork", name, "--at", f"step-{step}", "--folder", str(folder), *words)


def log_of(folder, name):
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    assert main(["export", name, str(log), "--folder", str(folder)]) == 0
    return [envelope.open(BY_SUBJECT[envelope.subject]) for envelope in read_log(log)]


def weights(events):
    return {event.weight_version: event.location.checksum for event in events if isinstance(event, WeightsPublished)}


def batches(events):
    return [
        [[member.episode for member in group] for group in event.groups]
        for event in events
        if isinstance(event, BatchFormed)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A synchronous run, and four forks of it at step 2."""
    folder = tmp_path_factory.mktemp("runs")
    run(folder, "base", "staleness_gate.max_staleness=0", "checkpoint.keep_last=9")
    arms = [
        *("--arm", "same", "--arm", "rate", "trainer.optimizer.lr=2e-3", "trainer.optimizer.betas=[0.5,0.9]"),
        *("--arm", "small", "trainer.batch_size=2", "--arm", "cool", "sampling.temperature=0.7"),
    ]
    ended = fork(folder, "base", AT, "checkpoint.keep_last=2", *arms)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_a_synchronous_fork_without_other_settings_is_equal_to_its_run(folder):
    base, same = log_of(folder, "base"), log_of(folder, "same")
    assert batches(same) == batches(base)
    assert weights(same) == weights(base)
    (forked,) = [event for event in same if isinstance(event, RunForked)]
    assert same[: forked.prefix] == base[: forked.prefix]


def test_a_fork_differs_from_the_first_step_that_its_settings_decide(folder):
    base, rate, small = (log_of(folder, name) for name in ("base", "rate", "small"))
    assert batches(rate)[: AT + 1] == batches(base)[: AT + 1]
    assert {version: checksum for version, checksum in weights(rate).items() if version <= AT} == {
        version: checksum for version, checksum in weights(base).items() if version <= AT
    }
    assert weights(rate)[AT + 1] != weights(base)[AT + 1]
    assert [len(batch) for batch in batches(small)] == [4] * AT + [2] * (STEPS - AT)


def test_no_episode_of_another_temperature_is_trained(folder):
    cool = log_of(folder, "cool")
    place = next(number for number, event in enumerate(cool) if isinstance(event, RunForked))
    before = {event.trajectory.episode for event in cool[:place] if isinstance(event, TrajectoryExported)}
    trained = [batch for batch in cool[place:] if isinstance(batch, BatchFormed)]
    assert not before & {member.episode for batch in trained for group in batch.groups for member in group}
    dropped = {event.episode for event in cool[place:] if isinstance(event, TrajectoryDropped)}
    assert dropped <= before


@pytest.mark.parametrize("name", ["same", "rate", "small", "cool"])
def test_a_fork_is_audited_replayed_and_verified_like_a_run(folder, name, capsys):
    assert main(["audit", name, "--recompute", "--folder", str(folder)]) == 0
    assert f"{STEPS + 1} of {STEPS + 1} versions proved" in capsys.readouterr().out
    assert main(["audit", "--replay", name, "--folder", str(folder)]) == 0
    assert main(["show", name, "--folder", str(folder)]) == main(["why", name, "--folder", str(folder)]) == 0
    assert main(["audit", "--verify", str(folder / name / "checkpoints" / f"step-{STEPS}"), "--steps", "8"]) == 0
    assert "events are those that the fork of base began with" in capsys.readouterr().out


def test_a_killed_fork_goes_on_and_reuses_episodes_of_weights_up_to_the_checkpoint(tmp_path):
    run(tmp_path, "async", "checkpoint.keep_last=9")
    step = min(int(path.name.removeprefix("step-")) for path in (tmp_path / "async" / "checkpoints").glob("step-*"))
    words = ["fork", "async", "--at", f"step-{step}", "--name", "killed", "trainer.optimizer.lr=2e-3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "areal_actors", *words, "--folder", str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    metrics, end = tmp_path / "killed" / "metrics.jsonl", time.monotonic() + PATIENT
    while f'"step":{step + 1},' not in (metrics.read_text().replace(" ", "") if metrics.exists() else ""):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    resumed = areal("resume", "killed", "--folder", str(tmp_path))
    assert resumed.returncode == 0, resumed.stderr
    assert main(["audit", "killed", "--recompute", "--folder", str(tmp_path)]) == 0
    events = log_of(tmp_path, "killed")
    assert batches(events)[: step + 1] == batches(log_of(tmp_path, "async"))[: step + 1]
    place, forked = next((n, event) for n, event in enumerate(events) if isinstance(event, RunForked))
    reused = [event for event in events[forked.prefix : place] if isinstance(event, TrajectoryExported)]
    assert len(reused) == forked.reused


def test_a_fork_is_refused_with_the_remedy(folder, capsys):
    for words, message in (
        (["--at", "step-9"], "kept: step-2, step-4, step-6"),
        (["--at", "step-6"], "add steps=NUMBER"),
        (["--at", "step-2", "model=other"], "this setting cannot change in a fork"),
    ):
        assert main(["fork", "base", "--name", "refused", *words, "--folder", str(folder)]) != 0
        assert message in capsys.readouterr().err
    assert not (folder / "refused").exists()
