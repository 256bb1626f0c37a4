from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from support.live_run import RECIPE

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.recipe.load import load, serving_recipe
from areal_actors.recovery.resume import (
    checkpoint_to_resume,
    in_working_folder,
    recipe_to_resume,
    run_to_resume,
    set_later_aside,
)


@pytest.fixture
def recipe(tmp_path):
    return load([RECIPE], [f"folder={tmp_path}"], CudaDevices(count=0, reason="none")).recipe


@pytest.fixture
def begun(tmp_path, recipe):
    folder = RunFolder(tmp_path / recipe.run)
    folder.create(recipe)
    return folder


def test_the_run_of_this_name_or_the_one_begun_last_continues(tmp_path, recipe, begun):
    later = RunFolder(tmp_path / "later")
    later.create(recipe)
    os.utime(begun.path / "recipe.json", (1.0, 1.0))
    assert run_to_resume("gsm8k-grpo", tmp_path).path == begun.path
    assert run_to_resume("", tmp_path).path == later.path


def test_existing_runs_are_listed_when_there_is_no_such_run(tmp_path, begun):
    with pytest.raises(SetupError, match="has no run 'other'; runs there: gsm8k-grpo"):
        run_to_resume("other", tmp_path)
    with pytest.raises(SetupError, match="there is no run; see --folder"):
        run_to_resume("", tmp_path / "elsewhere")


def test_a_run_goes_on_in_the_folder_in_which_it_was_started(tmp_path, monkeypatch, recipe, capsys):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    monkeypatch.chdir(project)
    inside, outside = RunFolder(project / "runs" / "inside"), RunFolder(elsewhere / "outside")
    for run in (inside, outside):
        run.create(recipe)
    with in_working_folder(inside):
        assert (Path.cwd(), capsys.readouterr().err) == (project, "")
    monkeypatch.chdir(elsewhere)
    for run in (inside, outside):
        with in_working_folder(run):
            assert Path.cwd() == project
        assert f"was started in {project}: relative paths are meant from there" in capsys.readouterr().err
        assert Path.cwd() == elsewhere
    copied = tmp_path / "copied"
    shutil.copytree(project, copied)
    assert RunFolder(copied / "runs" / "inside").working_folder() == copied
    project.rename(tmp_path / "gone")
    assert outside.working_folder() == elsewhere


def test_a_live_run_is_left_alone(tmp_path, begun):
    with begun.hold(), pytest.raises(SetupError, match=f"is running \\(process {os.getpid()}\\)"):
        run_to_resume("gsm8k-grpo", tmp_path)


def test_a_process_id_that_is_used_again_does_not_make_a_run_look_alive(tmp_path, begun):
    begun.announce(ServerAddress(url="nats://127.0.0.1:1", run="gsm8k-grpo", pid=os.getpid()))
    assert run_to_resume("gsm8k-grpo", tmp_path).live_supervisor() == ""


def test_a_checkpoint_to_go_back_to_must_be_kept_and_later_ones_are_set_aside(begun):
    for name in ("step-20", "step-40", "set-aside-step-60", "best"):
        (begun.checkpoints / name).mkdir()
    assert [checkpoint_to_resume(begun, name) for name in ("", "step-20", "40", "step-0")] == [-1, 20, 40, 0]
    for name in ("step-10", "best"):
        with pytest.raises(
            SetupError, match=f"has no checkpoint '{name}'; kept: step-20, step-40. step-0 retrains all steps"
        ):
            checkpoint_to_resume(begun, name)
    set_later_aside(begun, -1)
    set_later_aside(begun, 20)
    assert sorted(path.name for path in begun.checkpoints.iterdir()) == [
        "best",
        "left-step-40",
        "set-aside-step-60",
        "step-20",
    ]


def test_a_run_continues_under_its_own_recipe(begun, recipe):
    assert recipe_to_resume(begun, []) == (recipe, "")


def test_settings_of_where_and_how_fast_may_change(begun, recipe):
    changed, words = recipe_to_resume(
        begun, ["trainer.ranks=2", "watchdog.stall_seconds=9", "actors.trainer.process=learning"]
    )
    assert (changed.trainer.ranks, changed.watchdog.stall_seconds, changed.actors.trainer.process) == (
        2,
        9.0,
        "learning",
    )
    assert (
        msgspec.structs.replace(changed, trainer=recipe.trainer, watchdog=recipe.watchdog, actors=recipe.actors)
        == recipe
    )
    assert words == 'with trainer.ranks = 2, watchdog.stall_seconds = 9, actors.trainer.process = "learning"'


def test_a_run_leaves_the_certificate_of_its_launch_if_asked(begun, recipe):
    bus = msgspec.structs.replace(
        recipe.bus, host="127.0.0.1", tls=True, certificate="/launch/a.pem", certificate_key="/launch/a.key"
    )
    launched = msgspec.structs.replace(recipe, bus=bus)
    begun.keep(launched)
    assert recipe_to_resume(begun, [])[0] == launched
    changed, _ = recipe_to_resume(begun, ["bus.certificate=", "bus.certificate_key="])
    assert changed.bus == msgspec.structs.replace(bus, certificate="", certificate_key="")


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "steps=80",
            (
                "override `steps=80`: `steps`: found 80 for a run that began with 40; this setting cannot change when a"
                " run is resumed"
            ),
        ),
        ("algorithm.group_size=4", "`algorithm.group_size`: found 4 for a run that began with 8"),
        ("trainer.batch_size=1", "`trainer.batch_size`: found 1 for a run that began with 16"),
        ("trainer.rank=2", "did you mean `ranks`"),
        ("trainer.ranks=none", '`trainer.ranks`: found "none", expected'),
        ("trainer.tensor_parallel=2", "which tensor_parallel = 2 times sequence_parallel = 1 does not divide"),
        ("watchdog.stall=2", "`watchdog.stall` is not a setting; known: stall_seconds"),
    ],
)
def test_what_is_wrong_is_refused_by_name(begun, override, complaint):
    with pytest.raises(RecipeError, match=complaint):
        recipe_to_resume(begun, [override])


def test_what_was_only_served_does_not_go_on(tmp_path, recipe):
    folder = RunFolder(tmp_path / "served")
    folder.create(serving_recipe(recipe))
    with pytest.raises(SetupError, match="was served, not trained"):
        recipe_to_resume(folder, [])


def test_a_recipe_that_cannot_be_read_is_named(begun):
    (begun.path / "recipe.json").write_text("{}")
    with pytest.raises(SetupError, match="recipe\\.json cannot be read"):
        recipe_to_resume(begun, [])
