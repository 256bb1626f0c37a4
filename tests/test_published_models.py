"""Every station of a run for tiny copies of published models, beside plain transformers; docs/model-families.md has the
table."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.published_models import PUBLISHED, config_of, mtp_tensors, write_published
from support.published_outcomes import (
    LENGTHS,
    lost_tensors,
    make_trainer,
    plain_model,
    sequences,
    served,
    step_beside_plain,
)
from support.published_table import PAGE, line, row

from areal_actors.core.errors import EngineError, SetupError
from areal_actors.core.model_config import context_of
from areal_actors.training.models import load_model
from areal_actors.training.settings import LoraSettings
from areal_actors.weights.source_tensors import source_of
from areal_actors.weights.training_notes import training_notes
from areal_actors.weights.weight_files import stored_tensors, verify_weights

REFUSED = {"gemma2": "changes its logits after the head", "granite": "changes its logits after the head"}
SOON = ("qwen3_5", "gpt_oss", "deepseek_v3")
"""Models of the short tests; the others take a second each."""
TRAINED = [
    name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in PUBLISHED if name not in REFUSED
]
EXACT = 5e-5
"""Bound for gradients, relative to the largest entry of their tensor: rounding of float32 in another order, which
depends on the processor (1.6e-5 was seen)."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a copy, written on first use."""
    place, written = tmp_path_factory.mktemp("published"), {}

    def of(name):
        if name not in written:
            written[name] = write_published(name, place / name)
        return written[name]

    return of


@pytest.mark.parametrize("name", TRAINED)
def test_a_published_model_is_loaded_trained_saved_and_served(name, folders, tmp_path):
    folder = folders(name)
    ids = torch.from_numpy(sequences()[0].token_ids)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            load_model(folder, "tokens")(input_ids=ids).logits, plain_model(name, folder)(input_ids=ids).logits
        )
    step = step_beside_plain(name, folder)
    assert step.gradient < EXACT
    assert step.weights < 1e-6
    assert step.loss < 1e-5
    problem, notes = step.trainer._scorer.hidden_states.sharing_problem, training_notes(folder)
    assert [note for note in notes if "packing" in note] == ([f"packing: no, because {problem}"] if problem else [])
    step.trainer.save(str(tmp_path / "saved"))
    assert lost_tensors(name, folder, str(tmp_path / "saved")) == []
    location = step.trainer.publish(str(tmp_path / "v1"))
    verify_weights(location, {key: tensor.shape for key, tensor in stored_tensors(folder).items()})
    resumed = make_trainer(folder)
    resumed.load(str(tmp_path / "saved"))
    assert resumed.checksum() == location.checksum
    assert (
        line(row(name, step.trainer, served(name, folder, step.trainer, tmp_path)))
        in PAGE.read_text(encoding="utf-8").splitlines()
    )


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_trained_is_refused_with_the_reason(name, folders, tmp_path):
    with pytest.raises(EngineError, match=REFUSED[name]) as refusal:
        make_trainer(folders(name))
    shown = served(name, folders(name), None, tmp_path)
    assert line(row(name, str(refusal.value), shown)) in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_page_has_every_model_once():
    text = PAGE.read_text(encoding="utf-8")
    assert {
        name: text.count(f"\n| {published.repository} |") for name, published in PUBLISHED.items()
    } == dict.fromkeys(PUBLISHED, 1)
    assert sorted(path.stem for path in (Path(__file__).parent / "support/published").glob("*.json")) == sorted(
        PUBLISHED
    )


@pytest.mark.parametrize("name", ["mistral_window", "gpt_oss"])
def test_windows_that_rows_exceed_have_the_gradient_of_rows_by_themselves(name, folders):
    assert config_of(name)["sliding_window"] < min(LENGTHS)
    packed, padded = (step_beside_plain(name, folders(name), prefix_sharing=sharing) for sharing in ("on", "off"))
    assert packed.gradient < EXACT > padded.gradient


def test_tensors_that_the_model_lacks_are_in_checkpoints_unchanged_and_under_an_adapter(folders, tmp_path):
    trainer = make_trainer(folders("qwen3_5"), lora=LoraSettings(rank=4, alpha=8, targets=("q_proj", "in_proj_qkv")))
    trainer.step(sequences())
    trainer.save(str(tmp_path / "saved"))
    assert lost_tensors("qwen3_5", folders("qwen3_5"), str(tmp_path / "saved")) == []
    before, after = (
        load_file(Path(folders("qwen3_5")) / "model.safetensors"),
        load_file(tmp_path / "saved" / "model.safetensors"),
    )
    carried = [name for name in before if name.startswith(("model.visual.", "mtp."))]
    assert len(carried) == 36
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in carried)
    changed = [name for name in before if not torch.equal(before[name].float(), after[name].float())]
    assert changed
    assert all(name.endswith(("q_proj.weight", "in_proj_qkv.weight")) for name in changed)


def test_a_tied_head_that_the_folder_has_too_is_in_checkpoints_and_published_weights(folders, tmp_path):
    source = tmp_path / "model"
    shutil.copytree(folders("qwen3"), source)
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    trainer = make_trainer(str(source))
    trainer.step(sequences())
    trainer.save(str(tmp_path / "saved"))
    assert lost_tensors("qwen3", str(source), str(tmp_path / "saved")) == []
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert torch.equal(saved["lm_head.weight"], saved["model.embed_tokens.weight"])
    location = trainer.publish(str(tmp_path / "v1"))
    verify_weights(location, {key: tensor.shape for key, tensor in stored_tensors(source).items()})
    assert served("qwen3", str(source), trainer, tmp_path) == "yes"
    resumed = make_trainer(str(source))
    resumed.load(str(tmp_path / "saved"))
    assert resumed.checksum() == location.checksum


def test_a_folder_that_lacks_weights_is_refused_before_it_is_filled_with_random_numbers(folders, tmp_path):
    shutil.copytree(folders("qwen3"), tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SetupError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight \(1 in all\)"):
        load_model(str(tmp_path / "model"), "tokens")


def test_quantized_weights_are_refused_with_what_to_do(folders, tmp_path):
    shutil.copytree(folders("qwen3"), tmp_path / "model")
    config = config_of("qwen3") | {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(SetupError, match="its weights are quantized"):
        load_model(str(tmp_path / "model"), "tokens")


def test_an_unknown_model_is_refused_in_a_sentence(folders, tmp_path):
    shutil.copytree(folders("qwen3"), tmp_path / "model")
    for config, reason in (
        ({"model_type": "vit"}, "no language model of type vit"),
        ({"model_type": "qwen9"}, "qwen9"),
    ):
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        with pytest.raises(SetupError, match=reason) as refusal:
            load_model(str(tmp_path / "model"), "tokens")
        assert len(str(refusal.value)) < 1000


def test_carried_tensors_are_those_that_the_class_does_not_have(folders):
    for name in ("qwen3_5", "qwen3_next", "glm4_moe", "deepseek_v3", "gemma3"):
        source = source_of(load_model(folders(name), "tokens"))
        assert mtp_tensors(name).keys() <= source.carried.keys()
    assert source.carried == {}


def test_the_context_ends_where_frequencies_depend_on_the_batch(folders):
    assert context_of(folders("phi3")) == 64
    assert context_of(folders("llama3")) == 512
    assert context_of(folders("deepseek_v3")) == 512


def test_tensors_that_are_not_trained_are_reported_before_a_run(folders):
    left = "not trained, and unchanged in every checkpoint: "
    assert [note for note in training_notes(folders("qwen3_5")) if note.startswith(left)] == [
        f"{left}33 tensors of its vision tower and 3 tensors of its prediction of several tokens (MTP)"
    ]
    assert training_notes(folders("deepseek_v3")) == [f"{left}3 tensors of its prediction of several tokens (MTP)"]
    assert training_notes(folders("qwen3")) == []
