"""Validates the agent settings of `[task]`: they must be consistent, and files they name must exist.

Cheap checks only: files are parsed but not run.
"""

from __future__ import annotations

import ast
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from areal_actors.core.actor_settings import ActorsSettings, Placement
from areal_actors.core.layers import Key
from areal_actors.core.named_code import dotted_parts, named_code_problems
from areal_actors.core.problems import Problems, is_installed, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings

SCRIPTS = (".js", ".mjs", ".cjs", ".ts", ".sh")
"""Suffixes of scripts that are not Python."""
ONLY_SUBPROCESS = ("python", "episodes_per_process", "memory_mb")


def find_problems(task: TaskSettings, actors: ActorsSettings, facts: RunFacts) -> Problems:
    """Yields every problem that keeps the agent from running."""
    if not facts.has_episodes() or facts.is_online or facts.plays_environment:
        return
    if task.agent and not task.is_script() and not dotted_parts(task.agent):
        yield from named_code_problems(("task", "agent"), task.agent, "agent", "agents/gsm8k.py:Gsm8kAgent")
    if task.system_prompt and (task.agent or task.command):
        yield (
            ("task", "system_prompt"),
            "found one beside an agent, which has its own; it is for the built-in agent: leave `agent` out",
        )
    if not task.agent and not task.command:
        yield from _check_built_in(task)
        return
    if task.command or task.is_script():
        yield from _program(task)
    yield from _model_errors(task)
    yield from _runner(task)
    script, _, name = task.agent.rpartition(":")
    if Path(script).suffix in SCRIPTS:
        yield (
            ("task", "agent"),
            f"found {toml_value(task.agent)}, but `:{name}` is for Python; write `agent = {toml_value(script)}`",
        )
    elif task.agent and not task.is_script():
        package = next(iter(dotted_parts(task.agent)), "") if not task.python else ""
        if (
            package
            and not any(Path(name).exists() for name in (package, f"{package}.py"))
            and not is_installed(package)
        ):
            fault = f"found {toml_value(task.agent)}, but no package `{package}`"
            yield ("task", "agent"), f"{fault} is installed or lies in {Path.cwd()}; fix the name, or install it"
        yield from _definition(task, actors.rollout_worker, facts.group_size)


def _model_errors(task: TaskSettings) -> Problems:
    """Check the names of exceptions and the reward of episodes that the model ends."""
    if not math.isfinite(task.overflow_reward):
        yield ("task", "overflow_reward"), f"found {task.overflow_reward}; write a finite number"
    for name in task.model_errors:
        place, _, exception = name.rpartition(":")
        if not place or not all(part.isidentifier() for part in exception.split(".")):
            yield (
                ("task", "model_errors"),
                f"found {toml_value(name)}; write `package.module:Exception` or `path.py:Exception`",
            )
        elif place.endswith(".py") and not Path(place).expanduser().is_file():
            yield ("task", "model_errors"), f"found {toml_value(name)}, but there is no file {place}; fix the path"


def _check_built_in(task: TaskSettings) -> Problems:
    """Check a recipe without an agent."""
    if task.python:
        yield (
            ("task", "python"),
            "found an interpreter, but the built-in agent runs in this one; name an agent, or leave it out",
        )
    if task.agent_options:
        yield (
            ("task", "agent_options"),
            "found options, but the built-in agent has only `system_prompt`; write `agent = …` for yours",
        )
    yield from _model_errors(task)


def _program(task: TaskSettings) -> Problems:
    """Check a script or a command."""
    if task.command and task.agent:
        yield ("task", "command"), f"found one beside `agent = {toml_value(task.agent)}`; name either"
    if not task.has_processes():
        named = (
            f'; or name its class or function, as in `agent = "{task.agent}:Agent"`'
            if task.agent.endswith(".py")
            else ""
        )
        yield (
            ("task", "runner"),
            f'found "inline", but a script or command runs in its own process; write `runner = "subprocess"`{named}',
        )
    if task.agent_options:
        yield (
            ("task", "agent_options"),
            "found options, but a script or command takes none; pass arguments in `command`",
        )
    if task.command and task.runner != "container" and shutil.which(task.command[0]) is None:
        yield (
            ("task", "command"),
            f"found {toml_value(task.command[0])}, which is not an installed program; fix the name or install it",
        )
    if task.is_script() and not Path(task.agent).expanduser().is_file():
        yield (
            ("task", "agent"),
            (
                f"found {toml_value(task.agent)}, but there is no such file (looked beside the recipe and in"
                f" {Path.cwd()}); fix the path"
            ),
        )


def _runner(task: TaskSettings) -> Problems:
    if task.runner == "inline":
        for name in ONLY_SUBPROCESS:
            if value := getattr(task, name):
                yield (
                    ("task", name),
                    f'found {toml_value(value)}, which applies only with `runner = "subprocess"`; set that too',
                )
    elif task.python and task.runner == "subprocess" and not os.access(Path(task.python).expanduser(), os.X_OK):
        value = (
            f"found {toml_value(task.python)}, but there is no interpreter (looked beside the recipe and in"
            f" {Path.cwd()})"
        )
        yield ("task", "python"), f"{value}; create the environment"


def _definition(task: TaskSettings, workers: Placement, group_size: int) -> Problems:
    """Check the constructor and methods of a class at the top of the named file."""
    file, _, name = task.agent.rpartition(":")
    try:
        body = ast.parse(Path(file).expanduser().read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            methods = {
                entry.name: entry for entry in node.body if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            if "__init__" in methods or not node.bases:
                yield from _options(task, methods.get("__init__"))
            if "arun_group" in methods:
                yield from _group(task, workers, group_size)


def _options(task: TaskSettings, init: ast.FunctionDef | ast.AsyncFunctionDef | None) -> Problems:
    """Yields options that the class does not take, and missing arguments."""
    arguments = init.args if init else ast.arguments([], [], None, [], [], None, [])
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)][1:]
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    parameter_names = [*positional, *(argument.arg for argument in arguments.kwonlyargs)]
    given = task.agent_arguments()
    if missing := [name for name in required if name not in given]:
        names = ", ".join(f"`{name}`" for name in missing)
        yield (
            ("task", "agent_options"),
            f"found no {names}, which {task.agent} requires; write `{missing[0]} = …` there",
        )
    for option in given:
        if option in parameter_names or arguments.kwarg is not None:
            continue
        if option not in task.agent_options:
            fault = f"found {toml_value(task.container.service)}, but {task.agent} does not take `{option}`"
            yield ("task", "container", "service"), f"{fault}; give its `__init__` this argument (docs/containers.md)"
        else:
            hint = nearest(option, parameter_names) if parameter_names else "it takes none"
            yield ("task", "agent_options", option), f"found an option that {task.agent} does not take; {hint}"


def _group(task: TaskSettings, workers: Placement, size: int) -> Problems:
    """A workflow with `arun_group` needs all members of a group in one process."""
    groups, worker = f"but {task.agent} runs whole groups", ("actors", "rollout_worker")
    if task.runner != "inline":
        yield ("task", "runner"), f'found "{task.runner}", {groups} (`arun_group`); write `runner = "inline"`'
    if workers.count > 1:
        yield (*worker, "count"), f"found {workers.count}, {groups} (`arun_group`) in one worker; write `count = 1`"
    if workers.concurrency < size:
        yield (*worker, "concurrency"), f"found {workers.concurrency}, {groups} of {size}; write at least {size}"


def unused_settings(task: TaskSettings) -> Iterator[Key]:
    """Yields settings of agents in processes of their own, and those of the built-in agent beside another."""
    if not task.has_processes():
        yield from (("task", name) for name in ("command", "processes", *ONLY_SUBPROCESS))
    if task.agent or task.command:
        yield ("task", "system_prompt")
    if not task.should_accept:
        yield ("task", "retry_rejected")
    if task.turn_discount is None:
        yield ("task", "branch_credit")
