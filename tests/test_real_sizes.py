"""Branches that a small model never takes, with the sizes of published ones; docs/model-families.md lists them."""

import asyncio
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.published_models import write_published
from support.published_outcomes import assert_greedy, lost_tensors, make_trainer, sequences, step_beside_plain
from support.real_sizes import ADDED, CALL, END, ORDINARY, ROWS, byte_level, sentence_pieces, write_model
from support.tiny_engine import complete
from transformers import AutoModelForCausalLM

from areal_actors.core.values import Constraint, SamplingParams
from areal_actors.embedded.sampling import Sampler, filter_probabilities
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer, TextStream
from areal_actors.training.packing.packed_tree import PackedTree
from areal_actors.training.packing.prefix_tree import build_prefix_tree
from areal_actors.training.packing.tree_attention import attend
from areal_actors.weights import buckets
from areal_actors.weights.transfer import checksum, read_weights, write_weights
from areal_actors.weights.weight_files import stored_tensors

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "model-families.md"
CPU = torch.device("cpu")
EXACT = 1e-5
TEXTS = (
    "the quick brown foxes' 12345",
    "é 你好 🙂",
    "a\n  is",
    " the is a",
    "the<end_of_turn>the",
    "<|added 1|>user\nhi<|added 2|>",
)
PADDED = ORDINARY + ADDED + 7
"""An id that the head has and the tokenizer has not."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("large") / "model", tied=True)


@pytest.fixture(scope="module")
def chat(folder):
    return ChatTokenizer.load(folder)


def columns_of(chunk):
    return np.frombuffer(chunk.columns.token_ids, "<u4").astype(np.int64), np.frombuffer(chunk.columns.logprobs, "<f4")


# ------------------------------------------------------------ vocabulary


@pytest.mark.slow
def test_a_vocabulary_of_151_936_is_sampled_scored_published_and_saved_as_by_plain_transformers(folder, tmp_path):
    trainer = make_trainer(folder, logprob_check_sequences=0)

    async def run():
        engine = TransformersEngine(folder, GenerationSettings(device="cpu", max_num_seqs=4, max_model_len=256))
        prompt = np.random.default_rng(0).integers(65_536, ORDINARY, 40).tolist()
        try:
            greedy = await complete(engine, prompt, SamplingParams(max_tokens=8, temperature=0.0))
            drawn = await complete(
                engine, prompt, SamplingParams(max_tokens=8, temperature=1.0, seed=1, top_logprobs=3)
            )
            forced = await complete(engine, prompt, SamplingParams(max_tokens=2, logit_bias={PADDED: 100.0}))
            constraint = Constraint(kind="regex", text="[ab]{3}")
            bound = await complete(engine, prompt, SamplingParams(max_tokens=8, seed=1, constraint=constraint))
            trainer.step(sequences())
            await engine.load_weights(trainer.publish(str(tmp_path / "v1")), 1)
            later = await complete(engine, prompt, SamplingParams(max_tokens=8, temperature=0.0))
        finally:
            await engine.close()
        return engine.tokenizer, prompt, greedy, drawn, forced, bound, later

    chat, prompt, greedy, drawn, forced, bound, later = asyncio.run(run())
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert_greedy(plain, prompt, columns_of(greedy)[0])
    ids, logprobs = columns_of(drawn)
    with torch.no_grad():
        scores = plain(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    assert np.abs(scores[range(len(ids)), ids].numpy() - logprobs).max() < 1e-4
    assert ids.max() > 65_535
    assert np.array_equal(np.frombuffer(drawn.top_ids, "<u4").reshape(-1, 3), scores.topk(3).indices.numpy())
    assert columns_of(forced)[0].tolist() == [PADDED, PADDED]
    assert chat.decode([PADDED, ORDINARY - 1, PADDED]) == chat.decode([ORDINARY - 1])
    assert re.fullmatch("[ab]{3}", chat.decode(columns_of(bound)[0]))
    trainer.save(str(tmp_path / "saved"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert_greedy(saved, prompt, columns_of(later)[0])
    assert saved.get_input_embeddings().weight is saved.get_output_embeddings().weight


@pytest.mark.slow
def test_the_fast_tokenizer_of_151_665_tokens_gives_the_ids_of_the_library(chat):
    assert chat.byte_pairs is not None
    assert chat.largest_id == ORDINARY + ADDED - 1
    letters = random.Random(0)
    long = "".join(letters.choice("abcdefg hijklm\n Größe你好🙂<|added 3|>") for _ in range(20_000))
    for text in (*TEXTS, long):
        ids = chat.encode(text)
        assert ids == byte_level().encode(text, add_special_tokens=False).ids
        assert b"".join(map(chat.token_bytes, ids)).decode() == text
    assert max(chat.encode(long)) > 65_535
    assert (chat.special_id("<|added 2|>"), chat.special_id(f"<|added {CALL - ORDINARY}|>")) == (END, None)


@pytest.mark.parametrize("style", ["llama2", "gemma"])
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_that_are_bytes_are_released_as_whole_characters(style, text):
    chat = sentence_pieces(style)
    assert chat.byte_pairs is None
    for ids in (chat.encode(text), [*chat.encode(text), chat.vocabulary_size + 5], chat.encode(text)[:-1]):
        stream = TextStream(chat, special=True)
        assert "".join(stream.push([number]) for number in ids) + stream.finish() == chat.decode(
            ids, skip_special=False
        )


@pytest.mark.parametrize("style", ["llama2", "gemma"])
def test_bytes_of_tokens_add_up_to_the_text(style):
    chat = sentence_pieces(style)
    for text in ("é 你好 🙂", "the is a", "a\n  is"):
        whole = b"".join(map(chat.token_bytes, chat.encode(text))).decode()
        assert whole == (f" {text}" if style == "llama2" else text)
    assert chat.token_bytes(chat.special_id("<end_of_turn>")) == b"<end_of_turn>"
    assert chat.token_bytes(chat.vocabulary_size + 5) == b""


@pytest.mark.slow
def test_draws_from_151_936_tokens_keep_the_mass_of_the_tail():
    logits = torch.zeros(ROWS)
    logits[:100] = 9.0
    share = float(torch.softmax(logits, -1)[100:].double().sum())
    rows, rounds = 64, 40
    sampler = Sampler([SamplingParams() for _ in range(rows)], CPU)
    numbers = (np.arange(rows * rounds, dtype=np.float32) + 0.5) / (rows * rounds)
    drawn = np.concatenate(
        [sampler.sample(logits.repeat(rows, 1), numbers[at * rows : (at + 1) * rows]).token_ids for at in range(rounds)]
    )
    assert np.mean(drawn >= 100) == pytest.approx(share, abs=2e-3)
    tail = np.sort(drawn[drawn >= 100])
    expected = 100 + (ROWS - 100) * (np.arange(len(tail)) + 0.5) / len(tail)
    assert np.abs(tail - expected).max() < 0.01 * ROWS


def test_filters_over_151_936_tokens_are_those_of_double_precision():
    torch.manual_seed(0)
    probabilities = torch.softmax(torch.randn(3, ROWS) * 3, -1)
    top_p, top_k, min_p = (
        torch.tensor(column)[:, None] for column in ([0.95, 1.0, 0.5], [2.0**31, 1000.0, 50.0], [0.0, 1e-4, 0.0])
    )
    found = filter_probabilities(probabilities, top_p, top_k, min_p)
    exact = filter_probabilities(probabilities.double(), top_p.double(), top_k.double(), min_p.double())
    differing = (found > 0) != (exact > 0)
    assert float(exact[differing].sum()) < 1e-6
    assert (found > 0).sum(-1).tolist() != [ROWS, ROWS, ROWS]


# ------------------------------------------------------------ weights


def test_a_tensor_larger_than_a_file_or_a_part_has_one_of_its_own(tmp_path):
    tensors = {
        "model.embed_tokens.weight": torch.randn(ROWS, 64),
        "model.norm.weight": torch.randn(64),
        "a": torch.randn(1000),
    }
    location = write_weights(tensors, tmp_path / "v1", "model", shard_bytes=8 * 1024**2)
    assert len(list((tmp_path / "v1").glob("*.safetensors"))) == 2
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        name: tensor.shape for name, tensor in stored_tensors(tmp_path / "v1").items()
    }
    assert checksum(read_weights(location)) == location.checksum
    assert [len(bucket) for bucket in buckets.to_buckets(sorted(tensors.items()), {"kind": "whole"}, 8 * 1024**2)] == [
        2,
        2,
        2,
    ]


def test_a_changed_row_of_a_large_head_is_sent_alone_unless_its_places_exceed_int32(monkeypatch):
    before = {"head": torch.randn(ROWS, 64, dtype=torch.bfloat16)}
    after = {"head": before["head"].clone()}
    after["head"][ROWS - 1] += 1
    sent = dict(buckets.delta(before, after))
    assert sent.keys() == {"head#at", "head#to"}
    assert sent["head#at"].tolist() == list(range((ROWS - 1) * 64, ROWS * 64))
    monkeypatch.setattr(buckets, "MAX_INDEX", ROWS * 64 - 1)
    assert dict(buckets.delta(before, after)).keys() == {"head"}


def test_a_published_folder_in_several_files_is_saved_whole_and_without_what_it_has_twice(tmp_path):
    source = Path(write_published("qwen3_5", tmp_path / "model"))
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[:40], "model-00002-of-00002.safetensors": names[40:]}
    for file, own in files.items():
        save_file({name: tensors[name] for name in own}, source / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, own in files.items() for name in own}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    (source / "model.safetensors").unlink()
    save_file({"layers.0.attention.wq.weight": torch.zeros(2, 2)}, source / "consolidated.safetensors")
    trainer = make_trainer(str(source))
    trainer.step(sequences())
    trainer.save(str(tmp_path / "saved"))
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert lost_tensors("qwen3_5", str(source), str(tmp_path / "saved")) == []


# ------------------------------------------------------------ attention, positions, activations


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "value_size"),
    [
        (9, 3, 64, 64),
        (28, 4, 128, 128),
        (16, 8, 256, 256),
        (32, 32, 80, 80),
        (32, 32, 96, 96),
        (16, 16, 192, 128),
        (64, 8, 64, 64),
    ],
    ids=["SmolLM2", "Qwen2.5-7B", "Gemma 3", "Phi-2", "Phi-3", "DeepSeek-V3", "gpt-oss"],
)
def test_heads_of_published_sizes_attend_as_plain_attention(heads, kv_heads, size, value_size):
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 50, 300)
    tree = build_prefix_tree([np.concatenate([prompt, draw.integers(0, 50, length)]) for length in (150, 40)])
    torch.manual_seed(0)
    given = [
        torch.randn(len(tree.token_ids), *shape, requires_grad=True)
        for shape in ((heads, size), (kv_heads, size), (kv_heads, value_size))
    ]
    packed = PackedTree.of(tree, CPU)
    for places in tree.token_positions:
        out = attend(*given, packed.plan_for_window(256 if size == 256 else None), size**-0.5)[torch.from_numpy(places)]
        found = torch.autograd.grad(out.square().sum(), given)
        query, key, value = (column[torch.from_numpy(places)].transpose(0, 1)[None] for column in given)
        key, value = (column.repeat_interleave(heads // kv_heads, 1) for column in (key, value))
        distances = torch.arange(len(places))[:, None] - torch.arange(len(places))
        hidden = (distances < 0) | (distances >= (256 if size == 256 else len(places)))
        plain = ((query @ key.transpose(-1, -2)) * size**-0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ value
        wanted = torch.autograd.grad(plain.square().sum(), given)
        torch.testing.assert_close(out, plain[0].transpose(0, 1), atol=1e-5, rtol=1e-5)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3", "gpt_oss", "deepseek_v3", "ministral3", "olmo3"])
def test_positions_beyond_the_original_context_are_trained_as_by_plain_transformers(name, tmp_path):
    step = step_beside_plain(name, write_published(name, tmp_path / "model"), lengths=(150, 90, 40, 70))
    assert step.gradient < EXACT


@pytest.mark.parametrize("sharing", ["on", "off"])
def test_activations_of_25_000_are_trained_as_by_plain_transformers(sharing, tmp_path):
    source = write_published("qwen3", tmp_path / "model")
    tensors = load_file(Path(source) / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][5] *= 300_000
    save_file(tensors, Path(source) / "model.safetensors", metadata={"format": "pt"})
    plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = plain(
            input_ids=torch.from_numpy(sequences()[0].token_ids)[None], output_hidden_states=True
        ).hidden_states[2]
    assert float(hidden.abs().max()) > 25_000
    step = step_beside_plain("qwen3", source, prefix_sharing=sharing)
    assert step.gradient < 1e-3
    assert step.loss < 1e-4


# ------------------------------------------------------------ the table of branches


def test_every_branch_of_the_page_names_a_test_that_exists():
    section = PAGE.read_text(encoding="utf-8").partition("## Sizes that a small model does not reach")[2]
    named = re.findall(r"`(tests/test_\w+\.py)::(test_\w+)`", section)
    assert len(named) > 15
    missing = [
        f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert missing == []
    rows = [
        line for line in section.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| branch"))
    ]
    assert [row for row in rows if "::test_" not in row] == []
