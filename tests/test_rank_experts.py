"""A mixture of experts is trained by several ranks as by one: its experts are divided among tensor parts, sharded, or
in stages.

Tolerances are those of test_rank_layouts.py, with an optimizer that does not divide by what is almost 0.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.rank_cases import COMPARISON, QWEN3, assert_same_gradients, assert_same_metrics, run_cases
from support.rank_program import MICROBATCH_TOKENS, Case, gradients_of
from support.tiny_trainer import make_trainer, sequences_of
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer
from areal_actors.training.distributed.expert_parallel import expert_problem
from areal_actors.training.settings import OptimizerSettings
from areal_actors.weights.source_tensors import checkpoint_tensors, model_tensors

SHAPE = QWEN3 | {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
LAYOUTS = [(2, 1, 1), (1, 1, 2), (1, 1, 4), (2, 1, 2), (1, 2, 1), (1, 2, 2), (1, 1, 1, 3), (1, 1, 2, 2)]
"""Replicas, sequence parts, tensor parts, and stages."""
OPTIMIZER = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def random_mixture(folder: Path, **more) -> str:
    """A model of three blocks, of which the second is dense, as a Hugging Face folder."""
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**(SHAPE | {"mlp_only_layers": [1], "tie_word_embeddings": True, **more}))
    )
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def batches(model):
    trainer = make_trainer(model)
    return [sequences_of(trainer, seed=seed, off=0.5) for seed in range(2)]


@pytest.fixture(scope="module")
def alone(model, batches, tmp_path_factory):
    """Results of one rank, which leaves a checkpoint between the steps."""
    trainer = make_trainer(model, microbatch_tokens=MICROBATCH_TOKENS, optimizer=OptimizerSettings(**OPTIMIZER))
    logp, checkpoint = trainer.logp(batches[0]), str(tmp_path_factory.mktemp("checkpoint"))
    first = trainer.step(batches[0])
    trainer.save(checkpoint)
    early = gradients_of(trainer)
    second = trainer.step(batches[1])
    return {
        "logp": logp,
        "metrics": [first, second],
        "gradients": [early, gradients_of(trainer)],
        "checkpoint": checkpoint,
    }


@pytest.fixture(scope="module")
def ranks(model, batches, alone, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    settings = {"optimizer": OPTIMIZER}
    cases = [Case(name=str(layout), layout=layout, model=model, settings=settings) for layout in LAYOUTS]
    saved = str(folder / "saved")
    cases += [
        Case(
            name="saved",
            layout=(2, 1, 2),
            model=model,
            settings=settings,
            steps=(0,),
            save=saved,
            publish=str(folder / "published"),
        ),
        Case(name="resharded", layout=(1, 1, 4), model=model, settings=settings, steps=(1,), load=saved),
        Case(name="from one", layout=(1, 1, 2), model=model, settings=settings, steps=(1,), load=alone["checkpoint"]),
    ]
    return run_cases(folder, cases, {model: batches}) | {"folder": folder}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_trains_what_one_rank_trains(ranks, alone, layout):
    found = ranks[str(layout)]
    assert torch.allclose(found["logp"], alone["logp"], atol=3e-6, rtol=0)
    assert found["metrics"][0]["loss"] == pytest.approx(alone["metrics"][0]["loss"], abs=1e-6)
    assert_same_metrics(found["metrics"][0], alone["metrics"][0], 3e-6)
    assert_same_gradients(found["gradients"][0], alone["gradients"][0], 5e-6)
    assert_same_gradients(found["gradients"][1], alone["gradients"][1], 5e-5)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["resharded", "from one"])
def test_ranks_go_on_from_a_checkpoint_of_another_layout(ranks, alone, name):
    assert_same_metrics(ranks[name]["metrics"][0], alone["metrics"][1], 1e-4, COMPARISON)
    assert_same_gradients(ranks[name]["gradients"][0], alone["gradients"][1], 5e-5)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ranks_publish_each_expert_by_its_name_in_checkpoints(ranks, model):
    published = load_file(ranks["folder"] / "published" / "model.safetensors")
    begun = load_file(Path(model) / "model.safetensors")
    assert {name: tensor.shape for name, tensor in published.items()} == {
        name: tensor.shape for name, tensor in begun.items()
    }
    assert "model.layers.2.mlp.experts.7.up_proj.weight" in published
    assert any(not torch.equal(tensor, begun[name]) for name, tensor in published.items() if ".experts." in name)
    assert load_file(ranks["folder"] / "saved" / "model.safetensors").keys() == begun.keys()


def test_a_checkpoints_tensors_are_the_models_and_back(model):
    loaded = AutoModelForCausalLM.from_pretrained(model)
    files = load_file(Path(model) / "model.safetensors")
    state = {name: tensor for name, tensor in loaded.state_dict().items() if name != "lm_head.weight"}
    checkpoint = checkpoint_tensors(loaded, state)
    assert checkpoint.keys() == files.keys()
    assert all(torch.equal(tensor, files[name]) for name, tensor in checkpoint.items())
    restored = model_tensors(loaded, checkpoint)
    assert restored.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in restored.items())


def test_a_number_of_parts_that_does_not_divide_the_experts_is_refused():
    config = Qwen3MoeConfig(**SHAPE)
    assert expert_problem(config, 4) is None
    assert (
        expert_problem(config, 3)
        == "the model has 8 experts, which trainer.tensor_parallel = 3 does not divide; lower it"
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_run_trains_a_mixture_of_experts_on_the_embedded_engine(tmp_path):
    """Two steps of the main recipe: the engine's log-probabilities are the trainer's, with the weights and experts that
    it was sent."""
    root = Path(__file__).parent.parent
    tokenizer = train_tokenizer()
    folder = random_mixture(tmp_path / "model", max_position_embeddings=1024, vocab_size=tokenizer.get_vocab_size())
    write_tokenizer(tokenizer, Path(folder))
    settings = [
        *(
            "profile=embedded",
            f"model={folder}",
            "steps=2",
            "trainer.batch_size=2",
            "algorithm.group_size=2",
            "evaluation.tasks=0",
        ),
        *(f"folder={tmp_path / 'runs'}", "run=mixture", "sampling.max_tokens=24", "generation.max_model_len=512"),
    ]
    command = [sys.executable, "-m", "areal_actors", "run", str(root / "recipes" / "gsm8k_grpo.toml"), *settings]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = (tmp_path / "runs" / "mixture" / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if line["kind"] == "step.completed"]
    assert [step["step"] for step in steps] == [1, 2]
    assert max(step["metrics"]["train_infer_logprob_diff_max"] for step in steps) < 1e-4
    assert [step["metrics"]["routing_replayed"] for step in steps] == [1.0, 1.0]
    assert steps[0]["metrics"]["routing_mismatch"] < 0.01
