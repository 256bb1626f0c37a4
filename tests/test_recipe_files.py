"""Several recipe files with profiles, and numbers with which nothing is learnt."""

from pathlib import Path

import pytest
from test_recipe import NO_CUDA, PROFILES, RECIPE, read  # noqa: F401 - a fixture

from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load


def test_a_later_file_wins_over_the_profile_of_an_earlier_one_and_its_own_profile_over_it(read):  # noqa: F811
    assert read(RECIPE + PROFILES).recipe.steps == 3
    Path("mine.toml").write_text("steps = 7\n")
    files = [Path("recipe.toml"), Path("mine.toml")]
    assert (load(files, [], NO_CUDA).profile, load(files, [], NO_CUDA).recipe.steps) == ("small", 7)
    assert load(files, ["steps=9"], NO_CUDA).recipe.steps == 9
    Path("mine.toml").write_text("steps = 7\n[profiles.small]\nsteps = 8\n")
    assert load(files, [], NO_CUDA).recipe.steps == 8
    assert load(files, ["profile=big"], NO_CUDA).recipe.steps == 7
    assert load(files[::-1], [], NO_CUDA).recipe.steps == 3


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("trainer.optimizer.lr=inf", "`trainer.optimizer.lr`: found inf, expected a finite number"),
        ("trainer.optimizer.lr=nan", "`trainer.optimizer.lr`: found nan, expected a finite number"),
        ("trainer.optimizer.lr=1e6", "`trainer.optimizer.lr`: found 1e+06, with which no model learns"),
        ("sampling.temperature=20", "`sampling.temperature`: found 20, at which every token is almost as likely"),
        ("task.timeout_seconds=inf", "`task.timeout_seconds`: found inf, expected a finite number"),
    ],
)
def test_numbers_with_which_nothing_is_learnt_are_refused(read, override, complaint):  # noqa: F811
    with pytest.raises(RecipeError) as refused:
        read(RECIPE, override)
    assert complaint in str(refused.value)
