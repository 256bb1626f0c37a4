"""`areal-actors model convert`: GGUF files of tiny models that the `gguf` package wrote, and everything that is
refused."""

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
import transformers
from support.tiny_gguf import END_OF_TEXT, HEAD_DIM, tiny_model, vocabulary, write_gguf

from areal_actors.cli import main
from areal_actors.core.errors import SetupError
from areal_actors.models import gguf_file
from areal_actors.models.convert import convert_gguf, llama3_factors
from areal_actors.tokenization.tokenizer import ChatTokenizer

IDS = torch.arange(3, 90)[None]


def quiet(_):
    pass


@pytest.mark.parametrize(
    ("architecture", "tied"),
    [
        ("llama", True),
        ("llama", False),
        ("qwen2", True),
        ("qwen2", False),
        ("qwen3", True),
        ("qwen3", False),
        ("gemma3", True),
    ],
)
def test_a_converted_model_computes_what_the_original_computes(architecture, tied, tmp_path):
    model = tiny_model(architecture, tied=tied)
    convert_gguf(write_gguf(tmp_path / "tiny.gguf", model, architecture), tmp_path / "folder", report=quiet)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    assert type(loaded) is type(model)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    assert loaded.config.tie_word_embeddings is tied
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert not {"quantization_config", "_model_name_or_path"} & config.keys()


def test_the_command_prints_what_it_has_checked_and_leaves_one_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama")
    assert main(["model", "convert", "tiny.gguf"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "tiny.gguf: tiny llama, llama, 26,",
        "260 tokens, text comes back from its tokens",
        "chat template  present, ends a turn with <|im_end|>",
        "stop tokens    <|im_end|>",
        'in a recipe: model = "tiny"',
    ):
        assert words in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny", "tiny.gguf"]
    chat = ChatTokenizer.load("tiny")
    assert chat.decode(chat.encode("he 東京 <|im_end|>"), skip_special=False) == "he 東京 <|im_end|>"


def test_weights_are_written_in_bfloat16_on_request(tmp_path):
    model = tiny_model("qwen2")
    file = write_gguf(tmp_path / "tiny.gguf", model, "qwen2")
    convert_gguf(file, tmp_path / "half", dtype="bfloat16", report=quiet)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.to(torch.bfloat16))


def test_a_quantized_file_has_the_dequantized_weights(tmp_path):
    model = tiny_model("llama")
    weights = model.model.layers[0].mlp.down_proj.weight.detach().numpy()
    packed = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    file = write_gguf(tmp_path / "tiny.gguf", model, "llama", quantized={"blk.0.ffn_down.weight": packed})
    convert_gguf(file, tmp_path / "folder", report=quiet)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").model.layers[0].mlp.down_proj.weight
    assert np.array_equal(loaded.detach().numpy(), gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))
    assert not np.array_equal(loaded.detach().numpy(), weights)


def test_the_end_of_a_turn_is_added_to_the_stop_tokens(tmp_path):
    lines = []
    file = write_gguf(tmp_path / "tiny.gguf", tiny_model("qwen2"), "qwen2", eos=END_OF_TEXT)
    result = convert_gguf(file, tmp_path / "folder", report=lines.append)
    assert result.stops == (END_OF_TEXT, "<|im_end|>")
    assert "stop tokens: <|im_end|>, which end a turn of the chat template, are added to those of the file" in lines
    assert ChatTokenizer.load(tmp_path / "folder").stop_ids == (0, 2)


def test_a_base_model_is_converted_and_is_given_a_template(tmp_path, capsys):
    file, folder = (
        write_gguf(tmp_path / "base.gguf", tiny_model("llama"), "llama", template="", eos=END_OF_TEXT),
        tmp_path / "base",
    )
    assert main(["model", "convert", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "chat template  none: a base model" in shown
    assert f"model template {folder}` writes a chat template for it" in shown
    assert main(["model", "template", str(folder)]) == 0
    assert "written (chatml)" in capsys.readouterr().out
    chat = ChatTokenizer.load(folder)
    assert chat.render([{"role": "user", "content": "Hi"}]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert chat.stop_ids == (0, 2)
    assert main(["model", "template", str(folder)]) == 1
    assert "has a chat template already" in capsys.readouterr().err


def test_a_plain_template_ends_a_turn_with_the_end_of_the_text(tmp_path, capsys):
    file, folder = (
        write_gguf(tmp_path / "base.gguf", tiny_model("llama"), "llama", template="", eos=END_OF_TEXT),
        tmp_path / "base",
    )
    convert_gguf(file, folder, report=quiet)
    assert main(["model", "template", str(folder), "--style", "plain"]) == 0
    chat = ChatTokenizer.load(folder)
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "So?"},
    ]
    assert chat.render(turns) == f"User: Hi\nAssistant: Yes{END_OF_TEXT}\nUser: So?\nAssistant:"
    assert chat.stop_ids == (0,)
    assert "(plain)" in capsys.readouterr().out


# ------------------------------------------------------------ rotary scaling


def llama3(tmp_path, factors):
    model = tiny_model(
        "llama", rope_parameters={"rope_type": "llama3", "factor": 32.0, "rope_theta": 500_000.0, **LLAMA3}
    )
    return model, write_gguf(
        tmp_path / "tiny.gguf", model, "llama", extra={"rope_freqs.weight": np.array(factors, dtype=np.float32)}
    )


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def test_the_rotary_scaling_of_llama_3_is_restored_from_its_factors(tmp_path):
    model, file = llama3(tmp_path, llama3_factors(500_000.0, HEAD_DIM, 32.0))
    convert_gguf(file, tmp_path / "folder", report=quiet)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    assert torch.equal(loaded.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_the_factors_are_those_of_transformers():
    config = transformers.LlamaConfig(
        head_dim=64,
        hidden_size=256,
        num_attention_heads=4,
        rope_parameters={"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, **LLAMA3},
    )
    plain = 1 / 5e5 ** (torch.arange(0, 64, 2) / 64)
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    assert torch.allclose(plain / scaled, torch.tensor(llama3_factors(5e5, 64, 8.0)), rtol=1e-5)


def test_unknown_rotary_scalings_are_refused(tmp_path):
    _, file = llama3(tmp_path, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(SetupError, match=r"rope_freqs\.weight with an unknown scaling of the rotary embedding"):
        convert_gguf(file, tmp_path / "folder", report=quiet)
    file = write_gguf(tmp_path / "yarn.gguf", tiny_model("qwen2"), "qwen2", qwen2__rope__scaling__type="yarn")
    with pytest.raises(SetupError, match=r"scales its rotary embedding \(yarn\)"):
        convert_gguf(file, tmp_path / "folder", report=quiet)
    assert not (tmp_path / "folder").exists()


# ------------------------------------------------------------ refusals


@pytest.fixture
def tiny(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama")


def refused(file, folder):
    with pytest.raises(SetupError) as raised:
        convert_gguf(file, folder, report=quiet)
    assert not list(folder.parent.glob(".*.partial")), "nothing half-written is left"
    return str(raised.value)


def test_a_file_that_is_missing_or_no_gguf_is_refused(tmp_path):
    assert "none.gguf does not exist (looked in /" in refused(tmp_path / "none.gguf", tmp_path / "folder")
    assert "is a folder; name a .gguf file" in refused(tmp_path, tmp_path / "folder")
    (tmp_path / "page.gguf").write_text("<!doctype html>")
    assert "is no GGUF file: it does not begin with the letters GGUF" in refused(
        tmp_path / "page.gguf", tmp_path / "folder"
    )


@pytest.mark.parametrize("share", [0.0005, 0.02, 0.5, 0.999])
def test_a_file_that_is_cut_short_is_refused(tiny, tmp_path, share):
    content = tiny.read_bytes()
    tiny.write_bytes(content[: int(len(content) * share)])
    message = refused(tiny, tmp_path / "folder")
    assert f"this GGUF file of {tiny.stat().st_size:,} bytes is cut short or damaged" in message
    assert not (tmp_path / "folder").exists()


def test_files_that_are_no_whole_model_are_refused(tmp_path):
    model = tiny_model("llama")
    part = write_gguf(tmp_path / "part.gguf", model, "llama", split__count=3)
    assert "is one of 3 parts of a model" in refused(part, tmp_path / "folder")
    adapter = write_gguf(tmp_path / "adapter.gguf", model, "llama", general__type="adapter")
    assert "(general.type = adapter)" in refused(adapter, tmp_path / "folder")
    head = write_gguf(tmp_path / "head.gguf", model, "llama", drop={"token_embd.weight"})
    assert "no token_embd.weight; name another file" in refused(head, tmp_path / "folder")


def test_an_architecture_that_transformers_cannot_read_is_refused(tmp_path):
    file = write_gguf(tmp_path / "x.gguf", tiny_model("llama"), "llama", architecture_name="command-r")
    message = refused(file, tmp_path / "folder")
    assert (
        f"transformers {transformers.__version__} cannot read the architecture 'command-r' from a GGUF file" in message
    )


def test_weights_that_are_missing_or_would_be_left_out_are_refused(tmp_path):
    model = tiny_model("llama")
    lacking = write_gguf(tmp_path / "lacking.gguf", model, "llama", drop={"blk.1.ffn_up.weight"})
    assert "lacks 1 weights of LlamaForCausalLM, the first model.layers.1.mlp.up_proj.weight" in refused(
        lacking, tmp_path / "folder"
    )
    more = write_gguf(
        tmp_path / "more.gguf", model, "llama", extra={"blk.0.attn_q_a.weight": np.ones((4, 8), dtype=np.float32)}
    )
    assert "but transformers" in refused(more, tmp_path / "folder")


def test_a_folder_that_exists_is_kept(tiny, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("1")
    assert "folder: exists already; name another folder" in refused(tiny, tmp_path / "folder")
    assert (tmp_path / "folder" / "mine").read_text() == "1"


def test_a_full_disk_is_found_before_anything_is_written(tiny, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    message = refused(tiny, tmp_path / "folder")
    assert "32 MB are needed for the converted model (26," in message
    assert "parameters in float32), and 5 MB are free on the disk of /" in message


def test_without_the_gguf_package_the_sentence_names_the_extra(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert gguf_file.INSTALL in refused(tiny, tmp_path / "folder")
    assert "pip install 'areal-actors[gguf]'" in gguf_file.INSTALL


def test_the_vocabulary_has_every_byte():
    assert len(set(vocabulary())) == 260
