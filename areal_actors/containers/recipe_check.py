"""Validates `[task.container]`: runtime and image of an agent in a container, or the service of an agent's tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from areal_actors.containers.container import Container
from areal_actors.containers.podman_service import PodmanService
from areal_actors.containers.runtime import find_runtime
from areal_actors.containers.service import RUNTIMES
from areal_actors.core.container_settings import ContainerSettings
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import CONTAINER, TaskSettings

TABLE: Key = ("task", "container")
SERVICE, IMAGE, MOUNTS = ((*TABLE, name) for name in ("service", "image", "mounts"))


def find_problems(task: TaskSettings, facts: RunFacts) -> Problems:
    """Yields every problem that keeps the recipe's containers from starting."""
    if not facts.has_episodes() or facts.is_online:
        return
    if task.container.service and not facts.plays_environment:
        yield from _service(task)
    if task.runner != "container":
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


def _service(task: TaskSettings) -> Problems:
    """Check that an agent outside can have the commands of its tools run at the service."""
    settings, fault = task.container, f"found {toml_value(task.container.service)}, but"
    if task.runner == "container":
        reach = "an agent in a container reaches its gateway by a socket of this machine"
        yield SERVICE, f'{fault} {reach}; leave it out, or write task.runner = "inline" for tools in containers alone'
        return
    if not task.agent or task.is_script():
        yield SERVICE, f"{fault} only the class or function of an agent gets it; name one in task.agent"
    if CONTAINER in task.agent_options:
        yield SERVICE, f"{fault} task.agent_options.container is stated, too; leave one of them out"
    if settings.mounts:
        yield MOUNTS, "found some, but a container of tools has none; the agent writes files with `put_file`"
    if settings.options and settings.service not in RUNTIMES:
        yield (*TABLE, "options"), "found some, but only a runtime of this machine takes them; leave them out"
    if settings.image:
        yield from _reach_service(settings)
    else:
        yield IMAGE, "found none; name an image that the service has, best by digest"


def _reach_service(settings: ContainerSettings) -> Problems:
    """Load the service, and look for the image where a container runtime is the service."""
    try:
        service = Container(**settings.tool_arguments()).service
        if isinstance(service, PodmanService):
            service.find().find_image(settings.image)
    except RecipeError as error:
        yield SERVICE, str(error)
    except SetupError as error:
        setting, _, fault = str(error).partition(": ")
        yield tuple(setting.split(".")), fault


def _image(task: TaskSettings) -> Problems:
    if not task.container.image:
        yield (
            IMAGE,
            'found none; name an image that is on this machine, as in `container = { image = "python:3.12-slim" }`',
        )
        return
    try:
        find_runtime(task.container.runtime).find_image(task.container.image)
    except SetupError as error:
        setting, _, fault = str(error).partition(": ")
        yield tuple(setting.split(".")), fault


def _mounts(words: str, fault: str) -> tuple[Key, str]:
    return MOUNTS, f"found {toml_value(words)}; {fault}".replace("; but", ", but")


def unused_settings(task: TaskSettings) -> Iterator[Key]:
    """Yields the table, where no container is started."""
    if task.runner != "container" and not task.container.service:
        yield TABLE
