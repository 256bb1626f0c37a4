"""Leftovers of a run that was killed as a whole are removed by the next command, and nothing of a live one."""

from __future__ import annotations

import shutil

import pytest
from support.live_run import RECIPE, LiveRun
from support.tiny_trainer import write_model

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.messages import WeightsLoaded, WeightsPublished
from areal_actors.recipe.load import load
from areal_actors.run.preflight import clean_up, holding_weights
from areal_actors.weights import folders as weight_folders
from areal_actors.weights.folders import lock_path, shared_memory_path


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Shared memory."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(weight_folders, "SHARED_MEMORY", tmp_path / "shm")
    return tmp_path / "shm"


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def begun(runs, name, *settings):
    recipe = load([RECIPE], [f"folder={runs}", f"run={name}", *settings], CudaDevices(count=0, reason="none")).recipe
    folder = RunFolder(runs / name)
    folder.create(recipe)
    folder.announce(ServerAddress(url="nats://127.0.0.1:1", run=name, token="secret", pid=1))
    (folder.nats / "nats-server.conf").write_text("token")
    return recipe, folder


def weights(recipe, folder):
    place = shared_memory_path(recipe.run, folder.path)
    (place / "v3").mkdir(parents=True)
    (place / "v3" / "model.safetensors").write_bytes(bytes(1 << 20))
    return place


def test_weights_and_secrets_of_a_killed_run_are_removed_and_named(memory, runs):
    recipe, folder = begun(runs, "dead")
    place = weights(recipe, folder)
    lock_path(place).touch()
    assert clean_up(runs) == [
        f"removed the weights of a killed run in {place} (1.0 MiB)",
        "removed bus credentials of run 'dead', which has ended: bus.json, monitor.json, nats-server.conf",
    ]
    assert list(memory.iterdir()) == []
    assert {"secret", "admin_key", "recipe.json"} <= {path.name for path in folder.path.iterdir()}, (
        "a resumed run needs them"
    )
    assert clean_up(runs) == []


def test_nothing_of_a_live_run_is_touched(memory, runs):
    recipe, folder = begun(runs, "alive")
    with folder.hold(), holding_weights(recipe, folder):
        place = weights(recipe, folder)
        assert clean_up(runs) == []
        assert (place / "v3" / "model.safetensors").exists()
        assert folder.server().token == "secret"
    assert list(memory.iterdir()) == []
    assert not (folder.path / "bus.json").exists()


def test_weights_without_a_lock_file_are_those_of_an_earlier_version_and_left_alone(memory, runs):
    place = weights(*begun(runs, "old"))
    clean_up(runs)
    assert place.exists()


def test_a_run_whose_weights_have_no_room_anywhere_is_refused_before_its_start(memory, runs, tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    model = write_model(tmp_path / "model")
    recipe, folder = begun(runs, "large", "profile=embedded", f"model={model}")
    full = shutil.disk_usage(runs)._replace(free=1000)
    monkeypatch.setattr(weight_folders.shutil, "disk_usage", lambda _: full)
    with pytest.raises(SetupError, match="no room for the published weights"), holding_weights(recipe, folder):
        pass
    adapters, folder = begun(runs, "adapters", "profile=embedded", f"model={model}", "trainer.lora.rank=4")
    with holding_weights(adapters, folder):
        assert not list(memory.glob("*/v*"))


@pytest.mark.long
async def test_a_run_publishes_in_the_folder_that_its_recipe_names_and_leaves_nothing_there(tmp_path):
    named = tmp_path / "shared"
    named.mkdir()
    run = LiveRun(tmp_path / "runs", "steps=3", "evaluation.tasks=0", f"trainer.weights_folder={named}")
    try:
        async with run.listening():
            published = await run.until(WeightsPublished, 2)
            await run.until(WeightsLoaded, 2)
            assert await run.ended() == 0, run.output()
    finally:
        run.abort()
    assert all(event.location.folder.startswith(f"{named}/areal-gsm8k-grpo-") for event in published)
    assert list(named.iterdir()) == []
