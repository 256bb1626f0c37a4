"""The recipes of the repository, and the devices for which they choose a profile."""

from pathlib import Path

import pytest
from test_recipe import NO_CUDA

from areal_actors.core.devices import detect_cuda
from areal_actors.recipe.load import load

ROOT = Path(__file__).parent.parent


def test_the_recipe_of_the_repository_learns_in_minutes_without_a_gpu(monkeypatch):
    monkeypatch.chdir(ROOT)
    resolved = load([ROOT / "recipes/gsm8k_grpo.toml"], [], NO_CUDA)
    recipe = resolved.recipe
    assert (resolved.profile, recipe.model, recipe.task.dataset) == ("embedded", "embedded", "arithmetic")
    assert (recipe.steps, recipe.trainer.batch_size, recipe.algorithm.group_size, recipe.sampling.max_tokens) == (
        40,
        16,
        8,
        64,
    )


@pytest.mark.parametrize("file", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda file: file.name)
def test_a_recipe_of_the_repository_is_one_page(file):
    assert len(file.read_text().splitlines()) <= 60


def test_without_a_driver_there_is_no_cuda_device():
    found = detect_cuda("libno-such-driver.so.1")
    assert (found.count, found.reason) == (0, "no CUDA device: libno-such-driver.so.1 not found")


def test_the_driver_of_this_machine_is_asked_without_harm():
    found = detect_cuda()
    assert (found.count == 0) == found.reason.startswith("no CUDA device: ")
