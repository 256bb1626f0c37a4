"""Validates the tasks of a recipe: its dataset, or the environment that brings them. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from areal_actors.core.layers import Key
from areal_actors.core.named_code import named_code_problems
from areal_actors.core.problems import Problems, is_installed, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings
from areal_actors.tasks import huggingface as library
from areal_actors.tasks import sources
from areal_actors.tasks.environment_check import environment_problems, misplaced_problems

DATASETS = ("arithmetic", sources.GSM8K)
NOT_ONLINE = ("environment", "dataset", "reward", "should_accept")
"""Settings that an online run does not have, since external agents bring their tasks and rewards."""


def find_problems(task: TaskSettings, facts: RunFacts) -> Problems:
    """Yields what keeps the tasks from being listed, and settings that have no use in such a run."""
    if facts.is_serving:
        return
    if not facts.learns_from_examples:
        if facts.is_online:
            yield from _online_problems(task)
            return
        yield from environment_problems(task) if facts.plays_environment else misplaced_problems(task)
    if not facts.plays_environment:
        yield from _dataset_problems(task)


def _online_problems(task: TaskSettings) -> Problems:
    """Reject settings that an online run does not use, instead of ignoring them."""
    for name in NOT_ONLINE:
        if value := getattr(task, name):
            fault = f"found {toml_value(value)}, but external agents bring their own tasks and rewards"
            yield ("task", name), f"{fault}; leave it out"


def _dataset_problems(task: TaskSettings) -> Problems:
    dataset, key = task.dataset, ("task", "dataset")
    if not dataset:
        remedy = 'write `dataset = …` under `[task]`, or `agent = "online"` for agents that bring their tasks'
        yield key, f"found none; {remedy}"
    elif dataset != "arithmetic":
        yield from _source(key, dataset, f"; {nearest(dataset, DATASETS)}, or the path of a .jsonl file")
    if isinstance(task.held_out, str):
        remedy = "; write how many tasks to hold out, or the path of a .jsonl file"
        yield from _source(("task", "held_out"), task.held_out, remedy)


def _source(key: Key, spec: str, remedy: str) -> Problems:
    fault = f"found {toml_value(spec)}"
    if sources.is_in_code(spec):
        yield from named_code_problems(key, spec, "function", "tasks.py:rows")
        return
    missing = sources.is_on_disk(spec) and not sources.has_files(spec)
    if Path(spec).is_file() if missing else not sources.is_on_disk(spec) and not sources.is_on_hub(spec):
        yield key, f"{fault}{remedy}"
    elif missing:
        yield key, f"{fault}, but there is no such file (looked beside the recipe and in {Path.cwd()}){remedy}"
    elif sources.needs_library(spec) and not is_installed("datasets"):
        needed = f'{library.NEEDED}, or name a local .jsonl file, or "arithmetic"'
        yield key, f"{fault}, but the `datasets` library is not installed; {needed}"


def unused_settings(task: TaskSettings, facts: RunFacts) -> Iterator[Key]:
    """Yields settings of environments in a run without one, and of examples in a run of episodes."""
    if not task.environment:
        yield from (("task", name) for name in ("environment_args", "environment_tasks", "held_out_args"))
    if not facts.learns_from_examples:
        yield from (("task", name) for name in ("max_length", "overlong"))
