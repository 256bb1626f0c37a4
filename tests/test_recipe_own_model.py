"""A recipe with a model of one's own: which profile it gets, what of a profile of the embedded model it leaves out, and
learning rates."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load

NO_CUDA = CudaDevices(0, "no CUDA device: libcuda.so.1 not found")
RECIPE = """\
run   = "first-run"
steps = 3

[task]
dataset = "arithmetic"
agent   = "agents/adder.py:Adder"
reward  = "gsm8k"
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Load a recipe text, standing in a folder with one agent."""
    (tmp_path / "agents").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents/adder.py").write_text("class Adder:\n    pass\n")

    def read(text, *overrides):
        Path("recipe.toml").write_text(text)
        return load([Path("recipe.toml")], overrides, NO_CUDA)

    return read


OF_EMBEDDED = """
[profiles.embedded]
when                 = "no cuda"
model                = "embedded"
sampling.max_tokens  = 64
trainer.optimizer.lr = 8e-4
trainer.batch_size   = 8
"""
OWN = """
[profiles.laptop]
when                 = "no cuda, own model"
model                = "smollm"
trainer.batch_size   = 4
"""


@pytest.fixture
def pretrained(tmp_path):
    """A folder with the weights of a model of 12 million parameters."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    save_file({"weight": torch.zeros(12, 1000, 1000, dtype=torch.bfloat16)}, str(folder / "model.safetensors"))
    return str(folder)


def test_settings_of_a_profile_for_the_embedded_model_hold_for_no_other(read, pretrained):
    resolved = read(RECIPE + OF_EMBEDDED, f"model={pretrained}")
    assert (resolved.profile, resolved.recipe.model) == ("embedded", pretrained)
    assert (
        resolved.reason
        == f"{NO_CUDA.reason}; without trainer.optimizer.lr and sampling.max_tokens of [profiles.embedded], which are"
        f" for the embedded model and not for {pretrained}"
    )
    assert resolved.recipe.trainer.optimizer.lr == 1e-5
    assert (resolved.recipe.trainer.batch_size, resolved.recipe.sampling.max_tokens) == (8, 512)
    assert (
        read(RECIPE + OF_EMBEDDED, f"model={pretrained}", "trainer.optimizer.lr=3e-5").recipe.trainer.optimizer.lr
        == 3e-5
    )
    assert read(RECIPE + OF_EMBEDDED).recipe.trainer.optimizer.lr == 8e-4


def test_a_model_of_ones_own_has_a_profile_of_its_own(read, pretrained):
    resolved = read(RECIPE + OF_EMBEDDED + OWN, f"model={pretrained}")
    assert (resolved.profile, resolved.recipe.model, resolved.recipe.trainer.batch_size) == ("laptop", pretrained, 4)
    resolved = read(f'model = "{pretrained}"\n' + RECIPE + OF_EMBEDDED + OWN)
    assert (resolved.profile, resolved.recipe.model) == ("laptop", pretrained)
    assert read(RECIPE + OF_EMBEDDED + OWN).profile == "embedded"


def test_a_checkpoint_of_the_embedded_model_is_of_its_kind(read, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    save_file({"weight": torch.zeros(500, 1000)}, str(folder / "model.safetensors"))
    resolved = read(RECIPE + OF_EMBEDDED + OWN, f"model={folder}")
    assert (resolved.profile, resolved.recipe.model, resolved.recipe.trainer.optimizer.lr) == (
        "embedded",
        str(folder),
        8e-4,
    )


def test_a_rate_that_destroys_a_pretrained_model_is_refused(read, pretrained):
    stated = (f"model={pretrained}", "trainer.optimizer.lr=8e-4")
    with pytest.raises(RecipeError) as refused:
        read(RECIPE, *stated)
    assert (
        str(refused.value)
        == "override `trainer.optimizer.lr=8e-4`: `trainer.optimizer.lr`: found 0.0008, which destroys a pretrained"
        " model in a few steps; write 1e-05 to 5e-05, leave it out, or set trainer.optimizer.allow_high_lr = true"
    )
    assert read(RECIPE, *stated, "trainer.optimizer.allow_high_lr=true").recipe.trainer.optimizer.lr == 8e-4
    assert read(RECIPE, *stated, 'trainer.optimizer.name="sgd"').recipe.trainer.optimizer.lr == 8e-4
    assert read(RECIPE, *stated, "trainer.lora.rank=8").recipe.trainer.optimizer.lr == 8e-4
