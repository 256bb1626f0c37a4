"""Limits under which a run cannot work are named before its start, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NAME = "from areal_actors.supervision.process_limits import check_limits; check_limits()"


def checked(shell, **environment):
    """Run the check in a shell with these limits; returns its last line on standard error."""
    command = ["sh", "-c", f'{shell} exec "$0" -c "$1"', sys.executable, NAME]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    ("shell", "environment", "found", "remedy"),
    [
        ("ulimit -n 100;", {}, "may open 100 files, at least 256 are needed", "raise the hard limit (100) as root"),
        (
            "ulimit -S -n 100; ulimit -H -n 4096;",
            {},
            "may open 100 files",
            "ulimit -n 4096, in the shell that starts the run",
        ),
        ("ulimit -v 2000000;", {}, "has 1.9 GiB of address space, at least 5 are needed", "ulimit -v unlimited"),
        ("", {"PYTHONOPTIMIZE": "2"}, "PYTHONOPTIMIZE=2 (-OO)", "unset PYTHONOPTIMIZE, or set it to 1"),
    ],
)
def test_each_limit_is_named_with_its_remedy(shell, environment, found, remedy):
    line = checked(shell, **environment)
    assert found in line
    assert remedy in line


@pytest.mark.parametrize("shell", ["", "ulimit -n 256;", "ulimit -v 6000000;"])
def test_limits_under_which_a_run_works_are_no_problem(shell):
    assert checked(shell) == ""
