"""Adapters: what is trained, what is published, and what an engine makes of it."""

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from support.tiny_engine import CONTEXT, SETTINGS, complete, prompt_of, running
from support.tiny_trainer import logps, make_trainer, same, sequences_of, weights, write_model
from transformers import AutoModelForCausalLM

from areal_actors.core.errors import CheckpointError, EngineError, SetupError
from areal_actors.core.values import SamplingParams
from areal_actors.training.algorithms import Grpo, RewardModel
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.settings import LoraSettings
from areal_actors.weights.adapters import AdapterMerger, read_adapter
from areal_actors.weights.transfer import read_weights

SMALL = LoraSettings(rank=4, alpha=8)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model_folder):
    return partial(make_trainer, model_folder, lora=SMALL, lr=2e-2)


def stepped(trainer, steps=2):
    for seed in range(steps):
        trainer.step(sequences_of(trainer, seed=seed))
    return trainer


def base_of(trainer):
    return {name: tensor for name, tensor in weights(trainer).items() if "lora_" not in name}


def test_only_the_adapter_is_trained_and_begins_by_changing_nothing(make, model_folder):
    trainer = make()
    before = weights(trainer)
    ids = sequences_of(trainer)[0].token_ids
    assert (logps(trainer._model, ids) == logps(AutoModelForCausalLM.from_pretrained(model_folder), ids)).all()
    stepped(trainer)
    assert same(base_of(trainer), {name: tensor for name, tensor in before.items() if "lora_" not in name})
    factors = [
        name for name, tensor in weights(trainer).items() if "lora_" in name and not torch.equal(tensor, before[name])
    ]
    assert len(factors) == 2 * 7 * len(trainer._model.model.layers)
    assert not any("lm_head" in name for name in factors)


def test_its_first_weights_follow_from_the_seed(make):
    assert same(weights(make(seed=3)), weights(make(seed=3)))
    assert not same(weights(make(seed=3)), weights(make(seed=4)))


def test_what_is_published_is_small_and_peft_reads_it(make, model_folder, tmp_path):
    trainer = stepped(make())
    location = trainer.publish(str(tmp_path / "v2"))
    assert sorted(path.name for path in Path(location.folder).iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    whole = Path(model_folder, "model.safetensors").stat().st_size
    assert Path(location.folder, "adapter_model.safetensors").stat().st_size < whole / 4
    assert location.model == model_folder
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder), location.folder).eval()
    ids = sequences_of(trainer)[0].token_ids
    assert logps(theirs, ids) == pytest.approx(logps(trainer._model, ids), abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_adapter_is_published_as_the_whole_model(make, model_folder, tmp_path, dtype):
    trainer = stepped(make(lora=msgspec.structs.replace(SMALL, published="merged"), published_dtype=dtype))
    location = trainer.publish(str(tmp_path / "v2"))
    assert trainer.checksum() == location.checksum
    published, before = read_weights(location), load_file(Path(model_folder, "model.safetensors"))
    assert published.keys() == before.keys()
    whole = AutoModelForCausalLM.from_pretrained(model_folder)
    whole.load_state_dict({name: tensor.float() for name, tensor in published.items()}, strict=False)
    ids = sequences_of(trainer)[0].token_ids
    assert logps(whole, ids) == pytest.approx(logps(trainer._model, ids), abs=1e-5 if dtype == "float32" else 0.1)
    assert not torch.equal(
        published["model.layers.0.mlp.up_proj.weight"].float(), before["model.layers.0.mlp.up_proj.weight"]
    )


@pytest.mark.parametrize(
    "settings",
    [SMALL, LoraSettings(rank=4, alpha=8, rank_stabilized=True), LoraSettings(targets=("q_proj", "down_proj"))],
)
async def test_an_engine_samples_as_the_trainer_scores_at_every_version(make, model_folder, tmp_path, settings):
    trainer = make(lora=settings)
    async with running(model_folder, msgspec.structs.replace(SETTINGS, max_model_len=CONTEXT)) as engine:
        for version in range(1, 4):
            trainer.step(sequences_of(trainer, seed=version))
            await engine.load_weights(trainer.publish(str(tmp_path / f"v{version}")), version)
            chunk = await complete(engine, prompt_of(7), SamplingParams(max_tokens=30, seed=version))
            ids = [*prompt_of(7), *chunk.columns.ids_array()]
            assert chunk.columns.logprobs_array() == pytest.approx(logps(trainer._model, ids)[6:], abs=1e-4)
            assert (chunk.columns.versions_array() == version).all()


async def test_rounding_does_not_add_up_over_versions(make, model_folder, tmp_path):
    trainer = make()
    first = trainer.publish(str(tmp_path / "v0"))
    async with running(model_folder) as engine:
        before = {name: tensor.clone() for name, tensor in engine._weights.items()}
        for version in range(1, 4):
            stepped(trainer, 1)
            await engine.load_weights(trainer.publish(str(tmp_path / "v")), version)
        assert not same(before, engine._weights)
        await engine.load_weights(first, 4)
        assert same(before, engine._weights)


async def test_an_adapter_that_does_not_belong_is_refused_and_the_old_weights_stay(make, model_folder, tmp_path):
    location = stepped(make()).publish(str(tmp_path / "v1"))
    full = make_trainer(model_folder).publish(str(tmp_path / "full"))
    async with running(model_folder) as engine:
        before = {name: tensor.clone() for name, tensor in engine._weights.items()}
        with pytest.raises(EngineError, match="belongs to /elsewhere"):
            await engine.load_weights(msgspec.structs.replace(location, model="/elsewhere"), 1)
        with pytest.raises(EngineError, match="has checksum"):
            await engine.load_weights(msgspec.structs.replace(location, checksum="0"), 1)
        assert same(before, engine._weights)
        await engine.load_weights(full, 1)
        with pytest.raises(EngineError, match="full weights were loaded"):
            await engine.load_weights(location, 2)
        assert engine.weight_version == 1


def test_an_adapter_of_another_shape_is_refused_by_name(make, model_folder, tmp_path):
    location = make().publish(str(tmp_path / "v1"))
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    some = {name: tensor for name, tensor in model.state_dict().items() if "layers.1." not in name}
    with pytest.raises(EngineError, match=r"to model.layers.1.\S+, which has shape none"):
        AdapterMerger(model_folder, some).merge(location)
    (tmp_path / "v1" / "adapter_config.json").write_text(json.dumps({"r": "four"}))
    with pytest.raises(EngineError, match="cannot be read"):
        read_adapter(location)


def test_a_saved_model_is_the_merged_one_with_the_adapter_beside_it(make, model_folder, tmp_path):
    trainer = stepped(make())
    trainer.save_model(str(tmp_path / "saved"))
    ids = sequences_of(trainer)[0].token_ids
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert logps(merged, ids) == pytest.approx(logps(trainer._model, ids), abs=1e-5)
    assert merged.state_dict().keys() == AutoModelForCausalLM.from_pretrained(model_folder).state_dict().keys()
    published = trainer.publish(str(tmp_path / "v2"))
    apart, sent = (
        load_file(Path(folder) / "adapter_model.safetensors")
        for folder in (tmp_path / "saved" / "adapter", published.folder)
    )
    assert same(apart, sent)


def test_saved_and_loaded_the_adapter_continues_to_the_last_bit(make, tmp_path):
    trainer = stepped(make())
    trainer.save(str(tmp_path))
    restored = make(seed=9)
    restored.load(str(tmp_path))
    rows = sequences_of(trainer, seed=7)
    assert restored.step(rows) == trainer.step(rows)
    assert same(weights(trainer), weights(restored))


def test_a_checkpoint_is_refused_under_another_adapter_or_none(make, model_folder, tmp_path):
    make().save(str(tmp_path))
    for other in (
        make(lora=LoraSettings(rank=2)),
        make(lora=LoraSettings(rank=4, targets=("q_proj",))),
        make(lora=None),
    ):
        with pytest.raises(CheckpointError):
            other.load(str(tmp_path))


def test_the_initial_reference_is_the_base_and_costs_no_second_model(make):
    trainer = make(Grpo(kl=Kl(coefficient=0.1)))
    rows = sequences_of(trainer)
    base = trainer.logp(rows)
    stepped(trainer)
    prepared = trainer.prepare(rows)
    assert torch.equal(prepared.tokens.reference, base)
    assert (trainer.logp(rows) - base).abs().max() > 1e-3
    assert trainer._frozen["reference"].scorer is trainer._scorer


def test_parity_is_checked_under_older_adapters(make):
    trainer = make()
    rows = sequences_of(trainer)
    stepped(trainer, 2)
    metrics = trainer.step(rows)
    assert metrics["parity_tokens"] == sum(row.loss_mask.sum() for row in rows)
    assert metrics["train_infer_logprob_diff_max"] < 1e-5


@pytest.mark.parametrize(
    ("settings", "algorithm", "words"),
    [
        (LoraSettings(targets=("no_such_layer",)), None, "trainer.lora.targets.*no_such_layer"),
        (LoraSettings(targets=("lm_head",)), None, "lm_head is not supported"),
        (SMALL, RewardModel(), "trainer.lora: an adapter cannot train the scalar head of RewardModel"),
    ],
)
def test_bad_combinations_are_refused_by_name(make, settings, algorithm, words):
    with pytest.raises(SetupError, match=words):
        make(algorithm, lora=settings)
