"""The doors of README.md, walked as a reader does: an environment that has the wheels and nothing else, an empty home,
an empty folder, and the commands of the page exactly as they are."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_blocks import ROOT, blocks_of

README, INSTALL = ROOT / "README.md", ROOT / "docs" / "install.md"
DOORS = ("My laptop", "My GPUs", "My agent")


def commands_of_doors() -> dict[str, str]:
    """The shell block below the heading of each door."""
    lines = README.read_text(encoding="utf-8").splitlines()
    places = {title: lines.index(f"## {title}") + 1 for title in DOORS}
    shell = [block for block in blocks_of(README) if block.language == "sh"]
    return {
        title: min((block for block in shell if block.line > line), key=lambda block: block.line).text
        for title, line in places.items()
    }


def requirement_of_the_page() -> str:
    """Name and extras that the page about installing has for the wheels."""
    lines = [line for block in blocks_of(INSTALL) for line in block.text.splitlines() if "--find-links dist" in line]
    assert len(lines) == 1
    return shlex.split(lines[0])[-1]


def install_wheels(folder: Path, environment: dict[str, str]) -> Path:
    """Build both wheels and install them as the page does; returns the programs of the new environment."""
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "dist")]
    subprocess.run([sys.executable, *words, str(ROOT / "bus"), str(ROOT)], env=environment, check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], env=environment, check=True)
    programs = folder / "venv" / "bin"
    by_uv = [uv, "pip", "install", "--python", str(programs / "python")] if (uv := shutil.which("uv")) else []
    by_pip = [str(programs / "python"), "-m", "pip", "install", "--no-compile"]
    links = [f"--find-links={place}" for place in (folder / "dist", *os.environ.get("PIP_FIND_LINKS", "").split())]
    cpu = ["--extra-index-url=https://download.pytorch.org/whl/cpu"] * ("PIP_FIND_LINKS" not in os.environ)
    for command in filter(None, (by_uv, by_pip)):
        whole = [*command, "--quiet", *links, *cpu, requirement_of_the_page()]
        if not subprocess.run(whole, env=environment, check=False).returncode:
            return programs
    pytest.fail("neither uv nor pip installed the wheels")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_each_door_opens_with_the_wheel_and_the_page_alone(tmp_path):
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    programs = install_wheels(tmp_path, kept)
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    reader = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "OMP_NUM_THREADS": "1"}
    outputs = {}
    for title, commands in commands_of_doors().items():
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=work,
            env=reader,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ended.returncode == 0, f"{title}: {(ended.stdout + ended.stderr)[-3000:]}"
        outputs[title] = ended.stdout
    assert "held out, greedy" in outputs["My laptop"]
    assert (work / "runs" / "gsm8k-grpo" / "checkpoints" / "step-40" / "config.json").is_file()
    assert "trainer rank 3" in outputs["My GPUs"]
    assert "inference_worker-3" in outputs["My GPUs"]
    assert (work / "runs" / "my-agent" / "summary.txt").is_file()
