"""A hand-written loop with its gateway and engines in processes of their own, and joined to a served run."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import psutil
import pytest
from support.controller_harness import ROWS, OneCallWorkflow, recipe_for, task_settings
from support.tiny_trainer import write_model

from areal_actors.core.errors import SetupError
from areal_actors.generation.settings import GenerationSettings, ScriptedSettings
from areal_actors.library.controllers import (
    AsyncRolloutController,
    LogReader,
    backends,
    joined,
    joined_folder,
    processes,
)
from areal_actors.messages import KINDS, ActorStarted, RunStarted, WeightsPublished
from areal_actors.recipe import load as recipe_load
from areal_actors.weights.weight_files import location_of
from areal_bus.base import Stamp
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

pytestmark = pytest.mark.slow
SCRIPTED = GenerationSettings(engine="scripted", scripted=ScriptedSettings(shortest=2, longest=4))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


async def pid_of(rollouts, kind):
    found = 0
    async for envelope in rollouts._host.bus.log():
        if envelope.subject == ActorStarted.subject and (started := envelope.open(ActorStarted)).actor.startswith(kind):
            found = started.pid
    return found


async def test_processes_serve_a_loop_are_restarted_and_end_with_it(tmp_path, model):
    recipe = recipe_for(tmp_path, generation=SCRIPTED, task=task_settings(retries=3))
    async with AsyncRolloutController(recipe, processes) as rollouts:
        assert await rollouts.update_weights(model) == 0
        assert len((await rollouts.rollout_batch(ROWS[:2], OneCallWorkflow(), timeout=300)).groups) == 2
        os.kill(await pid_of(rollouts, "inference_worker"), signal.SIGKILL)
        batch = await rollouts.rollout_batch(ROWS[2:4], OneCallWorkflow(), timeout=300)
        assert len(batch.groups) == 2
        server = rollouts._host.folder.server()
        with LogReader(server.url, server.run, token=server.token, blobs=rollouts._host.folder.blobs) as reader:
            read = await asyncio.to_thread(reader.trajectories, batch)
        assert read == await rollouts.trajectories(batch)
        with pytest.raises(SetupError, match=r"is already joined by another controller \(process"):
            async with AsyncRolloutController(recipe, joined_folder(rollouts._host.folder.path)):
                pass
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if str(tmp_path) in command] == []


async def test_a_loop_joins_what_is_served_beside_agents_from_outside(tmp_path, model):
    served = recipe_for(tmp_path, generation=SCRIPTED)
    async with processes(served) as harness:
        await harness.publish(WeightsPublished(weight_version=0, location=location_of(model)))
        mine = msgspec.structs.replace(served, folder=str(tmp_path / "mine"))
        for _ in range(2):
            async with AsyncRolloutController(mine, joined_folder(harness.folder.path)) as rollouts:
                version = rollouts.weight_version
                batch = await rollouts.rollout_batch(ROWS[:2], OneCallWorkflow(), timeout=300)
                assert {reference.newest_version for reference in batch.references()} == {version}
                assert batch.groups[0][0].episode.startswith("loop-"), "names of its own, whatever others call theirs"
                assert await rollouts.update_weights(location_of(model)) == version + 1
        assert version == 1, "the second found the weights that the first had left"


async def test_a_failed_join_reports_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "GATEWAY_SECONDS", 0.3)
    recipe = recipe_for(tmp_path, generation=SCRIPTED)
    with pytest.raises(
        SetupError,
        match=r"has no bus\.json: no `areal-actors serve` is running there; start `areal-actors serve RECIPE`",
    ):
        joined_folder(tmp_path / "nowhere")
    server = await EmbeddedServer.start(tmp_path / "nats")
    try:
        for run, recipe_sent, complaint in (
            ("trained", recipe, "is a run with its own trainer; join one started by `areal-actors serve RECIPE`"),
            (
                "abandoned",
                recipe_load.serving_recipe(recipe),
                "has no gateway now; is `areal-actors serve` still running",
            ),
        ):
            bus = await NatsBus.connect(server.url, run, name="test", token=server.token, kinds=KINDS)
            started = RunStarted(recipe=msgspec.to_builtins(recipe_sent), profile="", reason="", folder="")
            await bus.publish(started, Stamp(id="started", sender="test", time=0.0))
            with pytest.raises(SetupError, match=complaint):
                await AsyncRolloutController(recipe, joined(server.url, run, token=server.token)).start()
            await bus.close()
    finally:
        await server.stop()


@pytest.mark.parametrize("home", [backends.in_process(), processes], ids=["in process", "processes"])
async def test_two_loops_of_one_name_are_not_let_into_one_folder(tmp_path, home):
    recipe = recipe_for(tmp_path, generation=SCRIPTED)
    async with AsyncRolloutController(recipe, home):
        with pytest.raises(
            SetupError, match=r"run '.*' is running .*; stop it first, or give this one another name: run=NAME"
        ):
            await AsyncRolloutController(recipe).start()
    async with AsyncRolloutController(recipe):
        pass
