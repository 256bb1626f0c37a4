"""A recipe with an old name of a setting or of a value is refused with the present name."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.renamed import SETTINGS, VALUES

RECIPE = Path(__file__).parent.parent / "recipes" / "gsm8k_grpo.toml"
NO_CUDA = CudaDevices(0, "no CUDA device")


def refusal(*settings):
    """The first complaint, without the place of the setting."""
    with pytest.raises(RecipeError) as refused:
        load([RECIPE], settings, NO_CUDA)
    return str(refused.value).partition("`: ")[2].partition("\n")[0]


@pytest.mark.parametrize("old", SETTINGS)
def test_an_old_setting_names_the_present_one_which_exists(old):
    new = SETTINGS[old]
    assert refusal(f"{old}=never") == f"`{old}` is now `{new}`"
    name = new.rpartition(".")[2]
    assert f"`{new}`: found" in refusal(f"{new}=[[]]"), f"{name} is a setting of another type"


@pytest.mark.parametrize(("setting", "old", "new"), [(name, *pair) for name, values in VALUES.items() for pair in values.items()])
def test_an_old_value_names_the_present_one_which_is_accepted(setting, old, new):
    assert refusal(f"{setting}={old}") == f'`{setting}`: found "{old}", expected "{new}", its present name'
    load([RECIPE], [f"{setting}={new}", "task.max_length=0"], NO_CUDA)


def test_an_old_setting_with_an_old_value_names_both():
    assert refusal("batcher.lost_sample=train_without") == (
        '`batcher.lost_sample` is now `batcher.incomplete_groups`; write batcher.incomplete_groups = "train_partial"'
    )
    assert refusal("batcher.filter=signal").endswith('found "signal", which is now `dynamic_sampling = true`')
