"""Validates `[task.container]`: the runtime and the image are on this machine, and an agent can be in a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from areal_actors.containers.runtime import find_runtime
from areal_actors.core.errors import SetupError
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings


def find_problems(task: TaskSettings, facts: RunFacts) -> Problems:
    """Yields every problem that keeps the recipe's containers from starting."""
    if task.runner != "container" or not facts.has_episodes() or facts.is_online:
        return
    if facts.plays_environment:
        yield (
            ("task", "runner"),
            'found "container", but an environment runs in processes of its own; leave it out',
        )
        return
    if not task.agent and not task.command:
        yield (
            ("task", "runner"),
            'found "container", but the built-in agent runs no code of yours; name an agent or a command',
        )
    for words in task.container.mounts:
        source, _, rest = words.partition(":")
        target, _, mode = rest.partition(":")
        if not Path(source).expanduser().exists():
            yield _mounts(words, f"but there is no {source} (looked in {Path.cwd()}); fix the path")
        if (target and not target.startswith("/")) or mode not in ("", "ro", "rw"):
            yield _mounts(words, "write `source`, `source:/target` or `source:/target:rw`")
    yield from _image(task)


def _image(task: TaskSettings) -> Problems:
    if not task.container.image:
        yield (
            ("task", "container", "image"),
            'found none; name an image that is on this machine, as in `container = { image = "python:3.12-slim" }`',
        )
        return
    try:
        find_runtime(task.container.runtime).find_image(task.container.image)
    except SetupError as error:
        setting, _, fault = str(error).partition(": ")
        yield tuple(setting.split(".")), fault


def _mounts(words: str, fault: str) -> tuple[Key, str]:
    return ("task", "container", "mounts"), f"found {toml_value(words)}; {fault}".replace("; but", ", but")


def unused_settings(task: TaskSettings) -> Iterator[Key]:
    """Yields the table, where no container is started."""
    if task.runner != "container":
        yield ("task", "container")
