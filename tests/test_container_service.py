"""`task.container.service`: an agent outside whose commands run in containers of the service that the recipe names."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from support.container_image import image
from support.ssh_server import ssh_server

from areal_actors.core.container_settings import ContainerSettings
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import Task
from areal_actors.recipe.load import load
from areal_actors.rollout.runners import runner_of

AGENT = """
from areal_actors.containers import Container
from areal_actors.containers.podman_service import PodmanService


class Agent:
    def __init__(self, container):
        self.container = container

    async def run(self, task, *, base_url, api_key):
        async with Container(**self.container) as container:
            ran = await container.run(task["command"])
            return f"{ran.output.strip()} by {type(container.service).__name__}, {container.limits.memory_mb} MiB"


class Plain:
    async def run(self, task, *, base_url, api_key):
        return ""


class Mine(PodmanService):
    pass


class Half:
    async def create(self, image, limits): ...
"""
RECIPE = """
run   = "tools"
steps = 1
model = "embedded"

[task]
dataset = "arithmetic"
agent   = "mine.py:Agent"
reward  = "gsm8k"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(AGENT)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The name of another host, with an `ssh` in the path that reaches it."""
    with ssh_server(tmp_path) as (name, ssh):
        words = shlex.join([shutil.which(ssh[0]), *ssh[1:]])
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (tmp_path / "bin" / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        yield name


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["inline", "subprocess"])
async def test_an_agent_s_tools_run_in_a_container_of_this_machine(folder, runner):
    assert await output_of(folder, "podman", runner) == "3 by PodmanService, 256 MiB"


@pytest.mark.slow
async def test_an_agent_s_tools_run_at_a_service_of_one_s_own(folder):
    assert await output_of(folder, "mine.py:Mine") == "3 by Mine, 256 MiB"


@pytest.mark.slow
async def test_an_agent_s_tools_run_on_another_host(folder, host):
    assert await output_of(folder, f"ssh:{host}") == "3 by SshService, 256 MiB"
    assert complaint_of(f"task.container.service=ssh:{host}", f"task.container.image={image()}") == ""
    missing = complaint_of(f"task.container.service=ssh:{host}", "task.container.image=no/such:image")
    assert f"`task.container.image`: there is no image no/such:image on {host}" in missing


async def output_of(folder, service, runner="inline"):
    """The output of an episode whose tool computes a sum."""
    container = ContainerSettings(image=image(), service=service, memory_mb=256, cpus=0.0)
    task = TaskSettings(agent="mine.py:Agent", runner=runner, container=container)
    agent = runner_of(task, folder, group_size=1)
    try:
        await agent.start()
        task = Task(id="t", data={"command": "echo $((1 + 2))"})
        return (await agent.run(task, base_url="http://127.0.0.1:1/v1", api_key="sk-7")).output
    finally:
        await agent.close()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["task.runner=container"], 'service`: found "mine.py:Mine", but an agent in a container reaches its gateway'),
        (["task.agent="], 'service`: found "mine.py:Mine", but only the class or function of an agent gets it'),
        (["task.agent=mine.py:Plain"], "but mine.py:Plain does not take `container`; give its `__init__`"),
        (["task.agent_options.container=1"], "task.agent_options.container is stated, too"),
        (["task.container.image="], "`task.container.image`: found none; name an image that the service has"),
        (['task.container.mounts=["data"]'], "`task.container.mounts`: found some, but a container of tools has none"),
        (['task.container.options=["--gpus"]'], "`task.container.options`: found some, but only a runtime of this"),
        (["task.container.service=podmann"], "`podmann`: write `podman`, `docker`, `ssh:HOST`, or a class"),
        (["task.container.service=ssh:-oProxyCommand=x"], "write `podman`, `docker`, `ssh:HOST`, or a class"),
        (["task.container.service=mine.py:Half"], "has no execute, put_file, get_file, remove"),
        (["task.container.service=mine.py:Nothing"], "has no `Nothing`"),
    ],
)
def test_what_cannot_run_commands_is_refused_by_name(folder, overrides, words):
    assert words in complaint_of("task.container.service=mine.py:Mine", "task.container.image=x", *overrides)


def complaint_of(*overrides):
    """The complaints about the recipe with these settings, without a class whose image cannot be looked for."""
    try:
        load([Path("recipe.toml")], list(overrides), cuda=CudaDevices(0, "no CUDA device"))
    except RecipeError as error:
        return str(error)
    return ""
