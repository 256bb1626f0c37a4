"""Tasks of an environment: listed once, in the environment's own interpreter, to files in the folder of the run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_actors.core.agent_host.processes import kill_tree
from areal_actors.core.config import merge_tables
from areal_actors.core.environments import EnvironmentHost, environment_name, host_of
from areal_actors.core.errors import SetupError
from areal_actors.core.programs import environment_command
from areal_actors.core.task_settings import TaskSettings

TASKS, HELD_OUT = "tasks.jsonl", "held_out.jsonl"
"""Files of the folder: the environment's tasks, and those of the environment with `held_out_args`, if there are any."""
LIST_SECONDS = 600.0
"""Time limit of listing the tasks of an environment, which may download a dataset."""
ERROR = "environment error: "
"""Beginning of the line in which the lister reports what the environment raised."""
SHOWN_CHARACTERS = 2000
HARBOR, HARBOR_PYTHON = "harbor", (3, 12)
"""Name of Harbor's interpreter in `.environments`, and the oldest Python that Harbor asks for."""
NO_HARBOR = re.compile(r"No module named 'harbor[\w.]*'.* in Python (?P<version>[\d.]+)")
UNKNOWN_IDS = ("NameNotFound", "NamespaceNotFound", "VersionNotFound")
"""Errors of Gymnasium about ids that are not registered."""


def list_environment(task: TaskSettings, folder: Path, root: Path) -> None:
    """Write the tasks of `task.environment` to files in `folder`; paths in the settings are relative to `root`.

    Raises:
        SetupError: the interpreter, the library or the environment is missing, the environment raises or hangs, or it
            has no tasks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _list_tasks(task, task.environment_args, task.environment_tasks, folder / TASKS, root)
    if task.held_out_args and isinstance(task.held_out, int) and task.held_out:
        _list_tasks(
            task, merge_tables(task.environment_args, task.held_out_args), task.held_out, folder / HELD_OUT, root
        )


def _list_tasks(task: TaskSettings, args: Mapping[str, Any], limit: int, path: Path, root: Path) -> None:
    host = host_of(task.environment)
    assert host is not None, "the recipe is checked"
    request = {
        "environment": environment_name(task.environment),
        "args": args,
        "limit": limit,
        "path": str(path.absolute()),
    }
    python = str(root / Path(task.python).expanduser()) if task.python else sys.executable
    kept = {
        name: value
        for name, value in os.environ.items()
        if not task.python or name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    command = [python, str(host.program)]
    try:
        status, printed = _run(command, json.dumps(request), root, kept)
    except OSError as error:
        raise SetupError(f"task.python: cannot start {python}: {error.strerror}; {_remedy(host)}") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"task.environment: {task.environment} did not list its tasks within {LIST_SECONDS:g} s"
        ) from error
    if status:
        raise SetupError(
            f"task.environment: {task.environment} cannot be used with {python}: {_explanation(printed, host)}"
        )
    if not path.stat().st_size:
        raise SetupError(
            f"task.environment: {task.environment} has no tasks; check the settings of its taskset in"
            " task.environment_args"
        )


def _run(command: Sequence[str], request: str, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a program in `folder` with the request on its standard input.

    Returns its exit status and what it printed as errors.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, printed = process.communicate(request, timeout=LIST_SECONDS)
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
    return process.returncode, printed


def _remedy(host: EnvironmentHost) -> str:
    return f"create its interpreter with {host.install('task.python')}"


def _harbor_remedy(version: str) -> str:
    older = tuple(map(int, version.split(".")[:2])) < HARBOR_PYTHON
    wanted = ".".join(map(str, HARBOR_PYTHON))
    cause = (
        f"Harbor asks for Python {wanted} or later, and this interpreter has {version}, under which pip leaves it out"
    )
    command = f'`{environment_command(HARBOR)}` and write task.python = ".environments/{HARBOR}/bin/python"'
    return f"{cause if older else 'Harbor is not installed there'}; create an interpreter for it with {command}"


def _explanation(printed: str, host: EnvironmentHost) -> str:
    """The reason why the environment's tasks were not listed, with a remedy where one is known."""
    before, marker, reason = printed.rpartition(ERROR)
    reason = (reason if marker else before or reason).strip() or "it ended without a message"
    shown = (reason if marker else reason.splitlines()[-1])[-SHOWN_CHARACTERS:]
    if not marker and "ModuleNotFoundError" in shown:
        return f"{shown}; {_remedy(host)}"
    if marker and (missing := NO_HARBOR.search(shown)):
        return f"{shown}; {_harbor_remedy(missing['version'])}"
    if host.library == "gymnasium" and shown.startswith(UNKNOWN_IDS):
        return (
            f"{shown.rstrip('.')}; name an id that `gymnasium.make` knows in that interpreter, or"
            ' "gymnasium:PATH.py:ENV_ID" of a file'
        )
    if "taskset" in shown and "not found" in shown:
        return (
            f"{shown}; install the environment's package with that interpreter's pip, or with `prime env install"
            ' OWNER/NAME`, or name the folder of its package, as in "verifiers:environments/NAME/NAME"'
        )
    return shown
