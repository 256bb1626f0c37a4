"""Interpreters of environments that ask for a later Python than ours."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from areal_actors.core.errors import SetupError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.tasks.environment_tasks import list_environment

ROOT = Path(__file__).parent.parent
CHOOSE = """
set -euo pipefail
fail() { printf '%s\\n' "$1" >&2; exit 1; }
python=$1
source scripts/install.sh
interpreter_for "$2"
"""
MINOR = sys.version_info[1]


def choose(tmp_path, wanted):
    """Run the script for requirements that ask for a Python, on a machine with only this one and a program
    `python3.77`."""
    requirements = tmp_path / "later.txt"
    requirements.write_text(f"# python: {wanted}\nsome-package\n" if wanted else "some-package\n")
    later = tmp_path / "python3.77"
    later.write_text("#!/bin/sh\nexit 0\n")
    later.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "PYENV_ROOT": str(tmp_path)}
    command = ["bash", "-c", CHOOSE, "choose", sys.executable, str(requirements)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("wanted", ["", "3.7", f"3.{MINOR}"])
def test_requirements_without_a_later_python_get_ours(tmp_path, wanted):
    assert choose(tmp_path, wanted).stdout.strip() == sys.executable


def test_requirements_that_ask_for_a_later_python_get_it(tmp_path):
    assert choose(tmp_path, "3.77").stdout.strip() == str(tmp_path / "python3.77")


def test_a_python_that_is_not_there_is_refused_with_what_to_do(tmp_path):
    chosen = choose(tmp_path, "3.88")
    assert chosen.returncode == 1
    assert f"later asks for Python 3.88 or later, and {sys.executable} is {platform.python_version()}" in chosen.stderr
    assert "`uv python install 3.88`" in chosen.stderr


@pytest.mark.parametrize(
    ("version", "cause"),
    [
        (
            "3.11.7",
            r"Harbor asks for Python 3\.12 or later, and this interpreter has 3\.11\.7, under which pip leaves it out",
        ),
        ("3.13.1", "Harbor is not installed there"),
    ],
)
def test_check_of_a_harbor_environment_names_the_python_that_it_asks_for(tmp_path, version, cause):
    program = tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\necho \"environment error: ModuleNotFoundError: No module named 'harbor' in Python {version}\""
        " >&2\nexit 1\n"
    )
    program.chmod(0o755)
    task = TaskSettings(environment="verifiers:harbor", python=str(program), runner="subprocess", held_out=0)
    remedy = (
        r"create an interpreter for it with `.*environments.* harbor` and write task\.python ="
        r" \"\.environments/harbor/bin/python\""
    )
    with pytest.raises(SetupError, match=rf"(?s){cause}; {remedy}"):
        list_environment(task, tmp_path / "tasks", ROOT)
