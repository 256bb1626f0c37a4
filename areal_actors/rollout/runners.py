"""Selects the runner of the agent in `[task]`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from areal_actors.core.environments import environment_name, host_of
from areal_actors.core.errors import AgentError
from areal_actors.core.prompts import SINGLE_TURN
from areal_actors.core.task_settings import TaskSettings
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.agent_runner import AgentRunner
from areal_actors.rollout.container_process import container_program
from areal_actors.rollout.group_runner import GroupRunner, runs_groups
from areal_actors.rollout.inline_runner import InlineRunner, load_agent
from areal_actors.rollout.own_loop_runner import OwnLoopRunner
from areal_actors.rollout.subprocess_runner import SubprocessRunner


def runner_of(task: TaskSettings, root: Path, *, group_size: int) -> AgentRunner:
    """The runner of the recipe's agent; paths are relative to `root`.

    Raises:
        RecipeError: there is no agent of this name.
        AgentError: it is not an agent, or does not support this runner.
    """
    if not (task.agent or task.command or task.environment):
        task = msgspec.structs.replace(task, agent=SINGLE_TURN, agent_options={"system_prompt": task.system_prompt})
    if task.has_processes():
        return SubprocessRunner(
            program_of(task, root),
            processes=task.processes,
            episodes_per_process=task.episodes_per_process or int(task.runner == "container"),
        )
    agent = load_agent(task.agent, root, task.agent_arguments())
    if runs_groups(agent):
        if not callable(getattr(agent, "arun_episode", None)):
            raise AgentError(
                f"agent {task.agent} has `arun_group` but no `arun_episode`, which evaluation calls; add it"
            )
        return OwnLoopRunner(GroupRunner(agent, task.agent, group_size=group_size, model_errors=task.model_errors))
    return OwnLoopRunner(InlineRunner(agent, task.agent, task.model_errors))


def program_of(task: TaskSettings, root: Path) -> AgentProgram:
    """The program of the agent's processes: the agent by its name, a script, or a command."""
    if task.runner == "container":
        return container_program(task, root)
    python = str(root / Path(task.python).expanduser()) if task.python else ""
    if task.environment:
        return _environment_program(task, root, python)
    script = (python or sys.executable, task.agent) if task.is_script() else ()
    return AgentProgram(
        agent="" if script else task.agent,
        command=task.command or script,
        root=str(root),
        python="" if script or task.command else python,
        options=task.agent_arguments(),
        memory_mb=task.memory_mb,
        model_errors=task.model_errors,
    )


def _environment_program(task: TaskSettings, root: Path, python: str) -> AgentProgram:
    """The program that plays the tasks of an environment."""
    host = host_of(task.environment)
    assert host is not None, "the recipe is checked"
    options = {
        "environment": environment_name(task.environment),
        "args": task.environment_args,
        "rewards_last_call": task.turn_discount is not None,
    }
    return AgentProgram(
        agent=host.agent,
        title=task.environment,
        root=str(root),
        python=python,
        options=options,
        memory_mb=task.memory_mb,
    )


def episodes_at_once(task: TaskSettings, concurrency: int) -> int:
    """Number of concurrent episodes of a rollout worker.

    At most one per process, so that none waits while its deadline runs.
    """
    return min(concurrency, task.processes) if task.has_processes() else concurrency
