"""Workers wait for a credential and for a run no longer than asked."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.live_run import ROOT
from test_launch import refused

from areal_actors.core.free_ports import find_free_ports


def test_a_worker_waits_for_its_credential_no_longer_than_asked(capsys, tmp_path):
    words = ("join", "--credential", str(tmp_path / "join.json"), "--wait", "0.2")
    assert "join.json cannot be read" in refused(capsys, *words)


@pytest.mark.slow
def test_a_worker_waits_for_a_run_no_longer_than_asked(tmp_path):
    command = [
        sys.executable,
        "-m",
        "areal_actors",
        "join",
        f"nats://127.0.0.1:{find_free_ports()}/gsm8k-grpo",
        "--token",
        "x",
        "--wait",
    ]
    ended = subprocess.run([*command, "0.5"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 1
    assert "within 0.5 s: the address is wrong, or run 'gsm8k-grpo' has ended" in ended.stderr
    unknown = [*command[:4], "nats://no-such-host.invalid:4222/gsm8k-grpo", *command[5:], "0.5"]
    assert "no bus answers" in subprocess.run(unknown, capture_output=True, text=True, check=False, cwd=tmp_path).stderr
    environment = {"PATH": "", "TMPDIR": str(tmp_path)}
    waiting = subprocess.Popen([*command, "600"], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert waiting.stderr.readline().startswith("waiting for run 'gsm8k-grpo' at 127.0.0.1:")
    waiting.send_signal(signal.SIGTERM)
    assert waiting.communicate(timeout=120)[1].startswith("SIGTERM: this host no longer waits for run")
    assert waiting.returncode == 0
    assert list(tmp_path.glob("areal-join-*")) == []
