"""A served model learns from its log while it is killed: the same weights, and nothing of a user who asked for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support.live_run import PATIENT, ROOT
from test_feedback_kills import Serving

from areal_actors.cli import main
from areal_actors.messages import StepCompleted
from areal_bus.recorded import read_log

KILLS = int(os.environ.get("AREAL_LEARN_KILLS", "2"))
STEPS = 16


def judged_talks(serving, count):
    """Sessions of two users by turns, each with feedback that is good for every second pair."""
    for number in range(count):
        end = time.monotonic() + PATIENT
        while (talk := serving.talk()) is None:
            assert time.monotonic() < end
            time.sleep(0.2)
        body = {"session_id": talk[0], "reward": float(number % 4 < 2), "user": "judge"}
        assert serving.post("/rl/feedback", body, serving.key("feedback_key"))[0] == 200
        yield talk[0]


def steps_of(folder, run):
    """The completed steps of a run, by number; several if one was taken again."""
    log = folder / f"{run}.log"
    log.unlink(missing_ok=True)
    assert main(["export", run, str(log), "--folder", str(folder)]) == 0
    steps = [envelope.open(StepCompleted) for envelope in read_log(log) if envelope.subject == StepCompleted.subject]
    return {step.step: (step.sequences_checksum, step.weights_checksum) for step in steps}


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "areal_actors", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def wait_for_step(folder, run, step, process):
    """Until the run's metrics have the step, or it has ended."""
    metrics, end = folder / run / "metrics.jsonl", time.monotonic() + PATIENT
    while process.poll() is None and time.monotonic() < end:
        if metrics.is_file() and f'"step":{step},' in metrics.read_text().replace(" ", ""):
            return
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(6 * PATIENT)
def test_learning_that_is_killed_makes_the_same_weights_and_erased_sessions_are_refused(tmp_path, capsys):
    serving = Serving(tmp_path)
    try:
        sessions = list(judged_talks(serving, 24))
        assert serving.end() == 0
        learn = ["learn", "talks-serve", "--folder", str(tmp_path)]
        settings = [f"steps={STEPS}", "trainer.batch_size=4", "checkpoint.every_steps=3"]
        assert main([*learn, *settings]) == 0
        printed = capsys.readouterr().err
        assert re.search(r"learns from \d+ rows: 24 rewarded", printed), printed
        assert "support: effective sample size 1.00" in printed
        whole = steps_of(tmp_path, "talks-serve-learn")
        assert len(whole) == STEPS

        recipe = tmp_path / "talks-serve" / "learn" / "talks-serve-learn.toml"
        process = start("run", str(recipe), *settings, "run=again")
        for number in range(KILLS):
            wait_for_step(tmp_path, "again", 1 + number * (STEPS - 2) // max(KILLS, 1), process)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            process = start("resume", "again", "--folder", str(tmp_path))
        _, errors = process.communicate(timeout=PATIENT)
        assert process.returncode == 0, errors
        assert steps_of(tmp_path, "again") == whole
        assert main(["audit", "again", "--folder", str(tmp_path)]) == 0
        assert "none of an erased session" in capsys.readouterr().out
        checkpoint = tmp_path / "again" / "checkpoints" / f"step-{STEPS}"
        assert main(["audit", "--verify", str(checkpoint), "--steps", "4"]) == 0
        assert "steps: " in capsys.readouterr().out
        rows = tmp_path / "talks-serve" / "learn" / "talks-serve-learn.jsonl"
        kept = rows.read_bytes()
        rows.write_bytes(kept.replace(b'"reward":1.0', b'"reward":0.5', 1))
        assert main(["audit", "--verify", str(checkpoint), "--steps", "0"]) == 1
        assert f"DIFFERS   {rows}" in capsys.readouterr().out
        rows.write_bytes(kept)

        serving.output = (tmp_path / "output.txt").open("ab")
        serving.start()
        assert serving.post("/rl/erase", {"session_id": sessions[0]}, serving.key("admin_key"))[0] == 200
        assert serving.end() == 0
    finally:
        if serving.process.poll() is None:
            serving.end()
    assert main(["run", str(recipe), *settings, "run=third"]) == 1
    assert "1 of its sessions were erased" in capsys.readouterr().err
    assert main(["audit", "again", "--folder", str(tmp_path)]) == 0
    assert "1 were erased after this run had begun" in capsys.readouterr().out
    assert main([*learn, "--dry-run"]) == 0
    assert re.search(r"learns from \d+ rows: 23 rewarded.*1 with an erasure on request", capsys.readouterr().err)
