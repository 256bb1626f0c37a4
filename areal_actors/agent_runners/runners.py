"""From `[task]` to the way in which its agent runs."""

from __future__ import annotations

import sys
from pathlib import Path

from areal_actors.agent_runners.agent_process import AgentProgram
from areal_actors.agent_runners.agent_runner import AgentRunner
from areal_actors.agent_runners.group_runner import GroupRunner, runs_groups
from areal_actors.agent_runners.inline_runner import InlineRunner, load_agent
from areal_actors.agent_runners.own_loop_runner import OwnLoopRunner
from areal_actors.agent_runners.subprocess_runner import SubprocessRunner
from areal_actors.errors import AgentError
from areal_actors.settings import TaskSettings


def runner_of(task: TaskSettings, root: Path, *, group_size: int) -> AgentRunner:
    """What runs the recipe's agent; paths count from `root`.

    Raises:
        RecipeError: there is no agent of that name.
        AgentError: it is no agent, or cannot run in this way.
    """
    if task.runner == "subprocess":
        return SubprocessRunner(program_of(task, root), processes=task.processes, episodes_per_process=task.episodes_per_process)
    agent = load_agent(task.agent, root, task.agent_options)
    if runs_groups(agent):
        if not callable(getattr(agent, "arun_episode", None)):
            raise AgentError(f"agent {task.agent} has `arun_group` but no `arun_episode`, by which it is evaluated; add it")
        return OwnLoopRunner(GroupRunner(agent, task.agent, group_size=group_size))
    return OwnLoopRunner(InlineRunner(agent, task.agent))


def program_of(task: TaskSettings, root: Path) -> AgentProgram:
    """What the agent's processes run: the agent by its name, a script, or a command."""
    python = str(root / Path(task.python).expanduser()) if task.python else ""
    script = (python or sys.executable, task.agent) if is_script(task.agent) else ()
    return AgentProgram(
        agent="" if script else task.agent,
        command=task.command or script,
        root=str(root),
        python="" if script or task.command else python,
        options=task.agent_options,
        memory_mb=task.memory_mb,
    )


def is_script(agent: str) -> bool:
    """A file without a name in it is run as it is."""
    return agent.endswith(".py")


def episodes_at_once(task: TaskSettings, concurrency: int) -> int:
    """How many episodes a rollout worker takes: none that would have to wait for a process while its deadline runs."""
    return min(concurrency, task.processes) if task.runner == "subprocess" else concurrency
