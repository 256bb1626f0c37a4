"""Settings of optimizer and adapter are read, and invalid ones refused."""

from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.training.settings import LoraSettings

ROOT = Path(__file__).parent.parent
NO_CUDA = CudaDevices(0, "no CUDA device: libcuda.so.1 not found")


def resolved(*overrides, file="gsm8k_grpo.toml"):
    return load([Path("recipes", file)], list(overrides), cuda=NO_CUDA).recipe


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_all_weights_are_trained_by_adamw_by_default():
    trainer = resolved().trainer
    assert (trainer.lora, trainer.optimizer.name, trainer.recompute_activations) == (None, "adamw", False)


def test_an_adapter_and_an_optimizer_are_tables_of_the_recipe():
    trainer = resolved("trainer.lora.rank=8", "trainer.optimizer.name=sgd", "trainer.optimizer.momentum=0.9").trainer
    assert trainer.lora == LoraSettings(rank=8)
    assert (trainer.optimizer.name, trainer.optimizer.momentum) == ("sgd", 0.9)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.optimizer.momentum=0.9", 'found 0.9, which adamw does not use; leave it out, or write name = "sgd"'),
        ("trainer.optimizer.muon_lr=0.1", 'found 0.1, which adamw does not use; leave it out, or write "muon"'),
        ("trainer.optimizer.minimum_ratio=0.1", 'found 0.1, but schedule = "constant" never falls'),
        ("trainer.lora.rank=0", "`trainer.lora.rank`: found 0"),
    ],
)
def test_what_nothing_would_come_of_is_refused(override, words):
    with pytest.raises(RecipeError) as refused:
        resolved(override)
    assert words in str(refused.value)


def test_routes_are_replayed_where_the_engine_reports_them(tmp_path):
    assert resolved().trainer.routing_replay == "auto"
    assert resolved("trainer.routing_replay=off").trainer.routing_replay == "off"
    for engine in ("scripted", "vllm"):
        assert resolved(f"generation.engine={engine}").trainer.routing_replay == "off"
        with pytest.raises(
            RecipeError, match=rf'found "on", but the engine {engine} reports no experts; set generation.engine to'
        ):
            resolved(f"generation.engine={engine}", "trainer.routing_replay=on")
    elsewhere = ["generation.engine=sglang", 'generation.server.urls=["http://localhost:1"]']
    assert resolved(*elsewhere).trainer.routing_replay == "off"
    assert resolved(*elsewhere, "trainer.routing_replay=on").trainer.routing_replay == "on"


def test_an_adapter_of_a_reward_model_is_refused():
    files = [path.name for path in (ROOT / "recipes").glob("*.toml") if '"reward_model"' in path.read_text()]
    with pytest.raises(RecipeError, match=r"trainer.lora`: found a table, but an adapter has no scalar head"):
        resolved("trainer.lora.rank=8", file=files[0])
