"""Episodes of genuine verifiers environments against a gateway with a scripted model."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.framework_harness import ROOT, ChatGatewayHarness
from support.gateway_harness import opened
from support.samples import work

from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import SamplingParams, Task
from areal_actors.messages import EpisodeScored, TrajectoryExported
from areal_actors.rollout.runners import program_of
from areal_actors.rollout.subprocess_runner import SubprocessRunner
from areal_actors.tasks.datasets import open_listed
from areal_actors.tasks.environment_tasks import list_environment

PYTHON = Path(".environments") / "verifiers" / "bin" / "python"
OURS = "tests/support"
PUBLIC = os.environ.get("AREAL_VERIFIERS_ENVIRONMENTS", "")
"""Folder with environment packages of the verifiers repository, if they are on this machine."""
CHAT = {"agent": {"harness": {"id": "areal-chat"}}}


def settings(environment, python=PYTHON, **task):
    """`[task]` of a run in an environment."""
    if not (ROOT / python).exists():
        pytest.skip(f"`just environments {python.parts[1]}` makes the interpreter that this needs")
    return TaskSettings(
        environment=f"verifiers:{environment}", python=str(python), runner="subprocess", **{"held_out": 0, **task}
    )


def gymnasium_settings(environment, **args):
    """`[task]` of a run in a Gymnasium environment."""
    return _settings_of("gymnasium", environment, args)


def openenv_settings(environment, **args):
    """`[task]` of a run in an OpenEnv environment."""
    return _settings_of("openenv", environment, args)


def _settings_of(library, environment, args):
    python = Path(".environments") / library / "bin" / "python"
    if not (ROOT / python).exists():
        pytest.skip(f"`just environments {library}` makes the interpreter that this needs")
    fields = {name: args.pop(name) for name in ("environment_tasks", "turn_discount") if name in args}
    named = {"environment": f"{library}:{environment}", "environment_args": args, "held_out": 0}
    return TaskSettings(python=str(python), runner="subprocess", **named, **fields)


def listed(task, folder):
    """The environment's tasks, in its order."""
    list_environment(task, folder, ROOT)
    return open_listed(folder, task.environment, seed=0, held_out=task.held_out).train.rows


class EnvironmentHarness(ChatGatewayHarness):
    """See `ChatGatewayHarness`; an environment plays the episodes."""

    def __init__(self, runner):
        super().__init__()
        self.runner = runner

    async def play_task(self, task, script, *, max_tokens=400):
        """Play a task with a scripted model, and score it; returns the agent's result and the trajectory."""
        self.script.lines = list(script)
        self.script.clear()
        run = work(f"{self.episodes}.0", sampling=SamplingParams(max_tokens=max_tokens))
        self.episodes += 1
        session = await self.open(run)
        result = await self.runner.run(Task(id="t", data=task.data), base_url=session.base_url, api_key=session.api_key)
        exported = self.until(TrajectoryExported)
        scored = EpisodeScored(
            work=run, session=session.session, reward=result.reward, rewards=result.rewards, metrics=result.metrics
        )
        await self.publish(scored)
        trajectory = (await exported).trajectory
        assert [list(turn.completion.ids_array()) for turn in trajectory.interactions] == self.script.sampled
        return result, trajectory


@asynccontextmanager
async def playing(task):
    """A gateway, and the environment of these settings in its interpreter."""
    runner = SubprocessRunner(program_of(task, ROOT), processes=1)
    async with opened(EnvironmentHarness(runner)) as harness:
        try:
            await runner.start()
            yield harness
        finally:
            await runner.close()
