"""Validates `task.environment` and its settings. Cheap checks only: the environment is not loaded."""

from __future__ import annotations

import os
from pathlib import Path

from areal_actors.core.environments import HOSTS, host_of
from areal_actors.core.problems import Problems, is_installed, toml_value
from areal_actors.core.task_settings import TaskSettings

BROUGHT = {
    "dataset": "tasks",
    "columns": "tasks",
    "agent": "agents",
    "command": "agents",
    "agent_options": "agents",
    "reward": "rewards",
    "reward_options": "rewards",
}
"""Settings that a run in an environment does not have, and what the environment brings instead."""
ONLY_WITH_ENVIRONMENT = ("environment_args", "held_out_args")


def environment_problems(task: TaskSettings) -> Problems:
    """Yields every problem that keeps a run from playing its environment."""
    host = host_of(task.environment)
    if host is None:
        forms = ", or ".join(f"`{form}" for known_host in HOSTS.values() for form in known_host.names)
        yield ("task", "environment"), f"found {toml_value(task.environment)}; write {forms}"
        return
    for setting, what in BROUGHT.items():
        if value := getattr(task, setting):
            instead = ', or write "" over another file\'s' if isinstance(value, str) else ""
            yield (
                ("task", setting),
                f"found {toml_value(value)}, but the environment brings its {what}; leave it out{instead}",
            )
    if task.runner != "subprocess":
        yield ("task", "runner"), 'found "inline", but an environment runs in processes of its own; leave it out'
    install = host.install("python")
    if not task.python and not is_installed(host.library):
        yield ("task", "python"), f"found none, and `{host.library}` is not installed here; run {install}"
    elif task.python and not os.access(Path(task.python).expanduser(), os.X_OK):
        yield (
            ("task", "python"),
            (
                f"found {toml_value(task.python)}, but there is no interpreter (looked beside the recipe and in"
                f" {Path.cwd()}); run {install}"
            ),
        )
    if isinstance(task.held_out, str):
        value = f"found {toml_value(task.held_out)}, but held-out tasks come from the environment"
        yield ("task", "held_out"), f"{value}; write their number, and what differs for them as `held_out_args`"


def misplaced_problems(task: TaskSettings) -> Problems:
    """Yields settings of environments in a recipe without one."""
    for name in ONLY_WITH_ENVIRONMENT:
        if getattr(task, name):
            yield (
                ("task", name),
                (
                    'found a table, which applies only with `environment = "verifiers:NAME"` or another environment;'
                    " set that too"
                ),
            )
