"""A recipe for a loop is read as the command reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.live_run import RECIPE, ROOT

from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import RecipeError
from areal_actors.library.controllers import recipe
from areal_actors.recipe.load import load

DAPO = ROOT / "recipes" / "dapo.toml"


def test_files_lie_over_each_other_and_settings_over_all_wherever_they_stand() -> None:
    made = recipe("trainer.batch_size=4", str(RECIPE), DAPO, "profile=embedded", "seed=3")
    assert made == load([RECIPE, DAPO], ["trainer.batch_size=4", "profile=embedded", "seed=3"], detect_cuda()).recipe
    assert (made.run, made.trainer.batch_size, made.seed) == ("dapo", 4, 3)
    assert type(made.algorithm) is not type(recipe(RECIPE).algorithm)


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    overlay = tmp_path / "seed=1.toml"
    overlay.write_text("seed = 7\n")
    assert recipe(RECIPE, str(overlay)).seed == recipe(RECIPE, overlay).seed == 7


def test_settings_alone_are_no_recipe() -> None:
    with pytest.raises(RecipeError, match="found no recipe"):
        recipe("steps=3")


@pytest.mark.parametrize("setting", ['task.mix=[{name="sums", dataset="arithmetic"}]', "task.curriculum.new=2.0"])
def test_settings_that_choose_tasks_for_a_loop_are_refused(setting: str) -> None:
    with pytest.raises(RecipeError, match="a hand-written loop chooses its tasks itself"):
        recipe(RECIPE, "profile=embedded", setting)
