"""Missing resources are reported before anything starts, with the remedy, and nothing is left running."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest
from support.live_run import RECIPE, ROOT


@pytest.fixture
def areal_run(tmp_path):
    def start(*settings, **environment):
        words = [str(RECIPE), "profile=embedded", f"folder={tmp_path / 'runs'}", *settings]
        command = [sys.executable, "-m", "areal_actors", "run", *words]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
        )
        left = [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(tmp_path) in " ".join(process.info["cmdline"] or [])
        ]
        assert left == []
        return done.returncode, done.stdout + done.stderr

    return start


def test_a_port_that_is_taken(areal_run):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        status, output = areal_run(f"gateway.port={port}")
    assert status == 1
    assert f"gateway.port: cannot listen on 127.0.0.1:{port} (Address already in use); set another port, or 0" in output


def test_no_nats_server(areal_run):
    status, output = areal_run(AREAL_NATS_SERVER="/nonexistent")
    assert status == 1
    assert "AREAL_NATS_SERVER is '/nonexistent', which is not an executable file; correct or unset it" in output


def test_a_nats_server_that_dies_at_once(areal_run, tmp_path):
    binary = tmp_path / "dying"
    binary.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 3\n")
    binary.chmod(0o755)
    status, output = areal_run(AREAL_NATS_SERVER=str(binary))
    assert status == 1
    assert "nats-server ended at start with exit status 3" in output
    assert "no such option" in output


def test_no_server_at_the_address(areal_run):
    status, output = areal_run("bus.url=nats://127.0.0.1:1")
    assert status == 1
    assert "no NATS server answers at nats://127.0.0.1:1" in output


def test_a_folder_that_cannot_be_written(areal_run, tmp_path):
    (tmp_path / "file").write_text("")
    status, output = areal_run(f"folder={tmp_path / 'file'}")
    assert status == 1
    assert "folder: the run cannot be kept in" in output


def test_a_dataset_with_a_bad_row_names_the_row(areal_run, tmp_path):
    dataset = tmp_path / "tasks.jsonl"
    dataset.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n{"question": "2 + 2?"}\n')
    status, output = areal_run(f"task.dataset={dataset}", "task.held_out=1", "evaluation.tasks=1")
    assert status == 1
    assert f"{dataset}:2" in output
    assert "answer" in output


def test_several_wrong_settings_are_all_named(areal_run):
    status, output = areal_run(
        "staleness_gate.max_stalness=1", "algorithm.clip=wide", "task.agent=agents/gsm8k.py:Nobody"
    )
    assert status == 2
    assert "did you mean `max_staleness`?" in output
    assert "expected a number" in output
