"""Ranks without processes: the grid a recipe asks for, who takes which micro-batches, and the frames they speak in."""

import hashlib
import socket
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.values import SequenceCall, TrainingSequence
from areal_actors.recipe.load import load
from areal_actors.training.distributed.commands import (
    CHALLENGE_BYTES,
    Command,
    Done,
    Frames,
    MethodCall,
    accept_hello,
    decode,
    encode,
    send_hello,
)
from areal_actors.training.distributed.layout import Layout, head_problem, layout_problem, stage_problem
from areal_actors.training.distributed.micro_batches import budget, distribute
from areal_actors.training.distributed.pipeline import one_forward_one_backward
from areal_actors.training.distributed.stages import blocks_of, keep_stage
from areal_actors.training.lora import Lora
from areal_actors.training.settings import LoraSettings, OptimizerSettings, TrainerSettings

SMALLEST = {
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
RECIPE = Path(__file__).parent.parent / "recipes" / "gsm8k_grpo.toml"

# ---------------------------------------------------------------- the grid


@pytest.mark.parametrize(
    ("numbers", "field", "words"),
    [
        ({"ranks": 4, "tensor_parallel": 3}, "ranks", "write a multiple of 3"),
        ({"ranks": 4, "tensor_parallel": 2, "sequence_parallel": 4}, "ranks", "write a multiple of 8"),
        (
            {"ranks": 2, "tensor_parallel": 2, "pipeline_parallel": 2},
            "ranks",
            "times pipeline_parallel = 2 does not divide; write a multiple of 4",
        ),
        ({"ranks_address": "0.0.0.0:29600"}, "ranks_address", "leave it out"),
        ({"ranks": 2, "optimizer": OptimizerSettings(name="adafactor")}, "ranks", "another trainer.optimizer.name"),
        ({"ranks": 2, "optimizer": OptimizerSettings(name="muon")}, "ranks", "Muon needs whole matrices"),
    ],
)
def test_numbers_that_give_no_grid_are_refused_by_the_setting_s_name(numbers, field, words):
    found = layout_problem(TrainerSettings(**numbers))
    assert found is not None
    assert found[0] == field
    assert words in found[1]


def test_the_ranks_that_no_part_asks_for_are_replicas():
    assert layout_problem(TrainerSettings(ranks=8, tensor_parallel=2, sequence_parallel=2)) is None
    assert Layout.of(TrainerSettings(ranks=8, tensor_parallel=2, sequence_parallel=2)) == Layout(2, 2, 2)
    assert Layout.of(TrainerSettings(ranks=8)) == Layout(8, 1, 1)
    assert layout_problem(TrainerSettings(ranks=8, tensor_parallel=2, pipeline_parallel=2)) is None
    assert Layout.of(TrainerSettings(ranks=8, tensor_parallel=2, pipeline_parallel=2)) == Layout(2, 1, 2, 2)


def test_heads_that_the_parts_do_not_divide_are_refused_with_their_number():
    assert head_problem(Layout(1, 2, 2), heads=8, kv_heads=4) is None
    assert "2 key and value heads" in head_problem(Layout(1, 2, 2), heads=8, kv_heads=2)
    assert "6 attention heads" in head_problem(Layout(2, 1, 4), heads=6, kv_heads=4)


@given(blocks=st.integers(1, 100), stages=st.integers(1, 100))
def test_stages_have_neighbouring_blocks_and_as_many_as_each_other_but_for_one(blocks, stages):
    layout = Layout(1, 1, 1, stages)
    assert (stage_problem(layout, blocks) is None) == (stages <= blocks)
    shares = [blocks_of(stage, stages, blocks) for stage in range(stages)]
    assert [number for share in shares for number in share] == list(range(blocks))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_stage_begins_as_many_micro_batches_as_there_are_stages_after_it_and_then_alternates():
    passes = []
    one_forward_one_backward(
        "abcd",
        2,
        lambda part: passes.append(f"forward {part}") or part,
        lambda _, gradient: passes.append(f"backward {gradient}"),
    )
    assert [name[0] + name[-1] for name in passes] == ["fa", "fb", "fc", "ba", "fd", "bb", "bc", "bd"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=8)), "does not support model type gpt2"),
        (
            Qwen2ForCausalLM(Qwen2Config(**SMALLEST)),
            "the model has 1 blocks, too few for trainer.pipeline_parallel = 2 stages",
        ),
    ],
)
def test_models_that_are_not_cut_into_stages_are_refused(model, words):
    with pytest.raises(SetupError, match=words):
        keep_stage(model, Layout(1, 1, 1, 2), 0)


def test_stages_have_several_micro_batches_each():
    assert budget(8000, 4000, replicas=1, stages=1) == 4000
    assert 8000 / budget(8000, 4000, replicas=1, stages=2) > 7
    assert 8000 / budget(8000, 4000, replicas=2, stages=2) > 14


def test_a_stage_without_a_layer_that_the_adapter_is_to_change_is_refused_by_name():
    model = Qwen2ForCausalLM(Qwen2Config(**{**SMALLEST, "num_hidden_layers": 3}))
    model.name_or_path = "tiny"
    Lora(model, "tiny", LoraSettings(targets=("0.self_attn.q_proj", "1.self_attn.q_proj")), seed=0)
    with pytest.raises(
        SetupError, match=r"trainer.lora.targets: stage 1 of trainer.pipeline_parallel = 2 has no such layer"
    ):
        keep_stage(model, Layout(1, 1, 1, 2), 0)


def test_a_stage_of_a_scalar_model_has_the_head_only_if_it_is_the_last():
    models = [
        Qwen2ForSequenceClassification(Qwen2Config(**{**SMALLEST, "num_hidden_layers": 2}, num_labels=1))
        for _ in range(2)
    ]
    for stage, model in enumerate(models):
        assert not keep_stage(model, Layout(1, 1, 1, 2), stage)
    heads = [[name for name, _ in model.named_parameters() if name.startswith("score")] for model in models]
    assert heads == [[], ["score.weight"]]


def test_a_recipe_with_a_critic_an_adapter_and_parts_of_every_kind_is_none_to_refuse():
    settings = [
        "trainer.ranks=8",
        *(f"trainer.{part}_parallel=2" for part in ("pipeline", "sequence", "tensor")),
        "trainer.lora.rank=4",
    ]
    recipe = load([RECIPE, RECIPE.parent / "ppo.toml"], settings, CudaDevices(0, "none")).recipe
    assert Layout.of(recipe.trainer) == Layout(1, 2, 2, 2)


def test_a_recipe_s_check_names_the_setting():
    with pytest.raises(RecipeError, match=r"`trainer.ranks`: found 3, which tensor_parallel = 2"):
        load([RECIPE], ["trainer.ranks=3", "trainer.tensor_parallel=2"], CudaDevices(0, "none"))


# ---------------------------------------------------------------- micro-batches


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_every_micro_batch_goes_to_one_replica_and_all_have_as_many(sizes, replicas):
    shares = distribute(sizes, replicas)
    assert {len(share) for share in shares} == {-(-len(sizes) // replicas)}
    assert sorted(index for share in shares for index in share if index is not None) == list(range(len(sizes)))


def test_replicas_compute_micro_batches_of_like_size_at_the_same_time():
    shares = distribute([10, 500, 490, 20, 300, 310], 2)
    rounds = list(zip(*shares, strict=True))
    assert [{*pair} for pair in rounds] == [{1, 2}, {4, 5}, {0, 3}]
    assert shares == [[1, 4, 3], [2, 5, 0]]


def test_a_batch_that_would_be_one_micro_batch_is_cut_for_every_replica():
    assert budget(1000, 4096, 2) == 550
    assert budget(20_000, 4096, 2) == 3667
    assert budget(100_000, 4096, 2) == 4096
    assert budget(0, 4096, 2) == 0


# ---------------------------------------------------------------- frames


def test_rows_arrive_as_they_were():
    rng = np.random.default_rng(0)
    rows = [
        TrainingSequence(
            token_ids=rng.integers(0, 2**31, size).astype(np.int64),
            loss_mask=rng.random(size) < 0.5,
            logprobs=rng.normal(size=size).astype(np.float32),
            versions=rng.integers(-1, 5, size).astype(np.int32),
            group=size,
            reward=float(rng.normal()),
            truncated=size % 2 == 0,
            episode=f"0.{size}",
            calls=tuple(
                SequenceCall(start=at, end=at + 1, reward=at / 3, truncated=at == 2, sample=str(at))
                for at in range(size % 4)
            ),
        )
        for size in (1, 7, 300)
    ]
    there = decode(encode(MethodCall(method="step", sequences=rows)), Command).sequences
    for row, arrived in zip(rows, there, strict=True):
        for field in row.__struct_fields__:
            assert np.array_equal(getattr(row, field), getattr(arrived, field))
            assert getattr(getattr(row, field), "dtype", None) == getattr(getattr(arrived, field), "dtype", None)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def admitted(pair, key, given):
    """Result of a group for a rank that has the key `given`."""
    rank = threading.Thread(target=send_hello, args=(pair[1], given, 3, 4, 77))
    rank.start()
    found = accept_hello(pair[0], key)
    rank.join()
    return found


def test_a_rank_that_has_the_key_is_admitted(pair):
    frames, hello = admitted(pair, "secret", "secret")
    assert (hello.rank, hello.ranks, hello.pid) == (3, 4, 77)
    big = Done(weight_version=1, value=b"x" * 3_000_000)
    there = threading.Thread(target=Frames(pair[1]).send, args=(big,))
    there.start()
    assert msgspec.msgpack.decode(frames.receive(), type=Done) == big
    there.join()


def test_a_client_without_the_key_is_refused(pair):
    assert admitted(pair, "secret", "guess") is None


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\nHost: there\r\n\r\n", b"\x05" + b"\0" * 7 + b"hello"], ids=["http", "noise"]
)
def test_a_client_of_another_protocol_is_refused(pair, words):
    pair[1].sendall(words)
    assert accept_hello(pair[0], "secret") is None


def test_the_proof_is_another_for_every_challenge(pair):
    seen = set()
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            threading.Thread(target=accept_hello, args=(ours, "secret"), daemon=True).start()
            challenge = Frames(theirs).receive()
            assert len(challenge) == CHALLENGE_BYTES
            seen.add(hashlib.sha256(challenge).digest())
    assert len(seen) == 2


def test_a_connection_that_ends_within_a_frame_is_an_error(pair):
    pair[1].sendall((100).to_bytes(8, "little") + b"half")
    pair[1].close()
    with pytest.raises(EOFError):
        Frames(pair[0]).receive()
