"""`areal-actors serve tinker` as a command: its start, its errors and its end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.tiny_trainer import write_model

from areal_actors.cli import main

ROOT = Path(__file__).parent.parent
SECONDS = 120

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def command(folder, state, *options):
    return [
        sys.executable,
        "-m",
        "areal_actors",
        "tinker",
        "--model",
        str(folder),
        "--state",
        str(state),
        "--device",
        "cpu",
        *options,
    ]


@pytest.mark.long
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_server_serves_until_it_is_interrupted(folder, tmp_path, ending):
    state = tmp_path / "state"
    options = ["--port", "0", "--name", "Qwen/Qwen3-8B"]
    with subprocess.Popen(command(folder, state, *options), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        banner = process.stdout.readline()
        root = re.search(r"http://127.0.0.1:\d+", banner)[0]
        assert f"serving Qwen/Qwen3-8B or {folder} at {root}; checkpoints in {state}" in banner
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[2].strip() == f"export TINKER_BASE_URL={root} TINKER_API_KEY=tml-local"
        with urllib.request.urlopen(f"{root}/api/v1/get_server_capabilities", timeout=SECONDS) as answer:
            assert [one["model_name"] for one in json.load(answer)["supported_models"]] == ["Qwen/Qwen3-8B", folder]
        assert (state / "Qwen" / "Qwen3-8B").resolve() == Path(folder).resolve()
        process.send_signal(ending)
        assert process.wait(SECONDS) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--port", "{taken}"], "cannot listen on 127.0.0.1:{taken} ("),
        (["--model", "no/such-model"], "model 'no/such-model' is neither a local folder nor available"),
        (["--threads", "0"], "--threads 0: write a positive number"),
        (["--name", "file"], "exists and is no link"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_start_that_cannot_succeed_ends_with_its_reason(folder, tmp_path, options, found, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = [option.format(taken=port) for option in options]
        done = subprocess.run(
            command(folder, tmp_path, *words), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    assert done.returncode == 1
    assert found.format(taken=port) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_two_servers_do_not_share_a_state_folder(folder, tmp_path):
    with subprocess.Popen(
        command(folder, tmp_path, "--port", "0"), stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        process.stdout.readline()
        words = command(folder, tmp_path, "--port", "0")
        second = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert second.returncode == 1
    assert f"--state {tmp_path}: another server has this folder (process {process.pid})" in second.stderr


@pytest.mark.long
def test_a_name_that_leaves_the_state_folder_is_refused(capsys):
    for name in ("/etc/model", "../model"):
        assert main(["serve", "tinker", "--name", name]) == 1
        assert "write a model's name" in capsys.readouterr().err
