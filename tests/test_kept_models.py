"""Embedded models are made once for a seed and its skills, and again if anything about them differs."""

import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from areal_actors.core.errors import SetupError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.embedded import kept_models
from areal_actors.embedded.kept_models import kept_model
from areal_actors.embedded.settings import EMBEDDED, WarmStart
from areal_actors.folder.run_folder import RunFolder
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.training_engine import EngineBuilder
from areal_actors.recipe.recipe import Recipe
from areal_actors.training.algorithms.grpo import Grpo
from areal_actors.training.settings import TrainerSettings

BRIEF = WarmStart(steps=1, tail_steps=1, batch_size=2)


class Steps:
    """Counts the supervised steps that were taken."""

    def __init__(self):
        self.taken = 0

    def __call__(self, *_):
        self.taken += 1


def weights(folder):
    return (Path(folder) / "model.safetensors").read_bytes()


def made(models, warm_start=BRIEF, seed=0, threads=1):
    steps = Steps()
    return kept_model(models, warm_start, seed, threads, steps), steps.taken


@pytest.fixture(scope="module")
def first_models(tmp_path_factory):
    """A folder with one model; tests take a copy."""
    models = tmp_path_factory.mktemp("kept") / "models"
    made(models)
    return models


@pytest.fixture
def models(first_models, tmp_path):
    return Path(shutil.copytree(first_models, tmp_path / "kept"))


def test_the_second_one_takes_no_step(tmp_path):
    first, steps = made(tmp_path / "models")
    assert steps == 2
    assert made(tmp_path / "models") == (first, 0)


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"threads": 2}, {"warm_start": msgspec.structs.replace(BRIEF, skills=("boxed",))}]
)
def test_what_determines_the_weights_names_the_folder(models, changed):
    first, _ = made(models)
    other, steps = made(models, **changed)
    assert other != first
    assert steps == 2


def test_changed_code_makes_another_model(models, monkeypatch):
    first, _ = made(models)
    monkeypatch.setattr(kept_models, "SOURCES", ("embedded",))
    other, steps = made(models)
    assert other != first
    assert steps == 2


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_one_is_made_again(models, damage):
    folder, steps = made(models)
    assert steps == 0
    intact = weights(folder)
    file = Path(folder) / "model.safetensors"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(intact[:-100] if damage == "cut" else intact[:-1] + bytes([intact[-1] ^ 1]))
    assert made(models) == (folder, 2)
    assert weights(folder) == intact
    assert [path.name for path in models.iterdir()] == [Path(folder).name]


def test_the_first_of_two_makers_at_once_is_kept(tmp_path):
    others = []

    def another_process_is_faster(*_):
        if not others:
            others.append(made(tmp_path)[0])
            (Path(others[0]) / "mark").write_text("the faster one's")

    folder = kept_model(tmp_path, BRIEF, 0, 1, another_process_is_faster)
    assert others == [folder]
    assert (Path(folder) / "mark").exists()
    assert [path.name for path in tmp_path.iterdir()] == [Path(folder).name]


def test_what_a_killed_maker_left_is_removed_after_a_day(tmp_path):
    old, young = tmp_path / "embedded-0-a.partial", tmp_path / "embedded-0-b.partial"
    for folder in (old, young):
        (folder / "model").mkdir(parents=True)
    day = time.time() - kept_models.ABANDONED_SECONDS - 60
    os.utime(old, (day, day))
    made(tmp_path)
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "models").write_text("a file")
    with pytest.raises(SetupError, match=r"models.*make it writable, or set another `folder`"):
        made(tmp_path / "models")


def test_a_second_run_has_the_first_ones_model_and_both_train_alike(tmp_path):
    def engine(run):
        recipe = Recipe(
            run=run,
            steps=1,
            model=EMBEDDED,
            folder=str(tmp_path),
            algorithm=Grpo(),
            task=TaskSettings(),
            warm_start=BRIEF,
            trainer=TrainerSettings(device="cpu"),
        )
        phases = []
        folder = RunFolder(tmp_path / run)
        folder.path.mkdir()
        made = EngineBuilder(BuildContext(recipe=recipe, folder=folder, instance="trainer-0"))(
            lambda phase, *_: phases.append(phase)
        )
        return (
            made,
            phases,
            (folder.model / "model.safetensors").read_bytes(),
            {path.name for path in folder.model.iterdir()},
        )

    first, phases, model, files = engine("first")
    second, no_phases, same_model, same_files = engine("second")
    assert phases == ["preparing the embedded model", "warm start", "warm start"]
    assert no_phases == ["preparing the embedded model"]
    assert (model, files) == (same_model, same_files)
    assert "manifest.json" not in files
    assert first.checksum() == second.checksum()
