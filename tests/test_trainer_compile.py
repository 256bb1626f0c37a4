"""Compiled blocks compute what the blocks compute; where they cannot be compiled, the recipe is refused."""

import os
import shutil
from functools import partial

import pytest
import torch
from support.rank_cases import assert_same_gradients, assert_same_metrics, run_cases, write_models
from support.rank_program import MICROBATCH_TOKENS, Case, gradients_of
from support.tiny_trainer import make_trainer, same, sequences_of, weights, write_model
from transformers import GPT2Config, GPT2Model

from areal_actors.core.errors import SetupError
from areal_actors.training.algorithms import Ppo
from areal_actors.training.compilation import compile_blocks
from areal_actors.training.recipe_check import trainer_problems
from areal_actors.training.settings import LoraSettings, TrainerSettings

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # by torch's compiler
LORA = {"lora": LoraSettings(rank=4)}


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    return partial(make_trainer, write_model(tmp_path_factory.mktemp("model")))


def compiled_graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"prefix_sharing": "off"},
        {"prefix_sharing": "off", "recompute_activations": True},
        LORA,
        LORA | {"prefix_sharing": "off"},
    ],
    ids=["branches", "padded", "recomputed", "adapter and branches", "adapter"],
)
def test_steps_have_the_log_probabilities_losses_and_gradients_of_blocks_that_are_not_compiled(make, more):
    plain, compiled = make(**more), make(compile=True, **more)
    rows, before = sequences_of(plain, off=0.4), compiled_graphs()
    for step in range(2):
        assert (plain.logp(rows) - compiled.logp(rows)).abs().max() < (1e-5, 1e-3)[step]
        ours, theirs = compiled.step(rows), plain.step(rows)
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=(1e-6, 1e-4)[step])
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=(1e-5, 1e-3)[step])
    assert 0 < compiled_graphs() - before < 10, "all blocks share their compiled code, whatever the number of tokens"
    assert list(weights(compiled)) == list(weights(plain))


@pytest.mark.long
def test_a_critic_is_compiled_too_and_a_checkpoint_goes_on_without_compilation(make, tmp_path):
    plain, compiled = make(Ppo()), make(Ppo(), compile=True)
    rows = sequences_of(plain, off=0.3)
    assert compiled.step(rows)["critic_loss"] == pytest.approx(plain.step(rows)["critic_loss"], abs=1e-6)
    compiled.save(str(tmp_path))
    plain.load(str(tmp_path))
    assert same(weights(plain), weights(compiled))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_blocks_of_two_replicas_and_of_two_stages_are_compiled(tmp_path):
    folder = write_models(tmp_path)["qwen3"]
    alone = make_trainer(folder, microbatch_tokens=MICROBATCH_TOKENS)
    rows = sequences_of(alone, off=0.5)
    cases = [
        Case(name=name, layout=layout, model=folder, steps=(0,), settings={"compile": True, **more})
        for name, layout, more in (
            ("replicas", (2, 1, 1), {"prefix_sharing": "off"}),
            ("branches", (2, 1, 1), {"prefix_sharing": "on"}),
            ("stages", (1, 1, 1, 2), {"prefix_sharing": "off"}),
        )
    ]
    found = run_cases(tmp_path, cases, {folder: [rows]})
    metrics = alone.step(rows)
    for case in cases:
        assert_same_metrics(found[case.name]["metrics"][0], metrics, 3e-6)
        assert_same_gradients(found[case.name]["gradients"][0], gradients_of(alone), 5e-6)


def test_without_compiler_the_recipe_is_refused_with_the_remedy(tmp_path):
    settings = TrainerSettings(device="cpu", compile=True)
    assert list(trainer_problems(TrainerSettings(), {"PATH": str(tmp_path)})) == []
    ((key, complaint),) = trainer_problems(settings, {"PATH": str(tmp_path), "CXX": "clang++-99"})
    assert key == ("trainer", "compile")
    assert (
        complaint
        == "found true, but there is no C++ compiler clang++-99; install one, or name yours in CXX; or write false"
    )
    if shutil.which("g++"):
        assert list(trainer_problems(settings)) == []
    (tmp_path / "cc").touch(mode=0o755)
    ((_, complaint),) = trainer_problems(
        TrainerSettings(device="cuda", compile=True), {"PATH": str(tmp_path), "CC": "none"}
    )
    assert "triton is not installed" in complaint or "there is no C compiler (none)" in complaint


def test_split_blocks_and_models_without_blocks_are_refused():
    ((key, complaint),) = trainer_problems(
        TrainerSettings(device="cpu", compile=True, ranks=2, tensor_parallel=2), os.environ
    )
    assert (key, "tensor_parallel = 2 times sequence_parallel = 1" in complaint) == (("trainer", "compile"), True)
    with pytest.raises(SetupError, match="GPT2Model has no list of blocks"):
        compile_blocks(GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=8)))


def test_a_compiler_that_fails_is_reported_at_the_start(make, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    monkeypatch.setattr("torch._inductor.config.force_disable_caches", True)
    torch._dynamo.reset()
    with pytest.raises(
        SetupError, match=r"torch\.compile does not work here on cpu: .*; write trainer.compile = false"
    ):
        make(compile=True)
