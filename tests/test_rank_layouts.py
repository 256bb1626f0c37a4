"""Ranks in every layout compute what one rank computes: losses, gradients, log-probabilities, and what follows a
checkpoint.

Tolerances: losses 1e-6, gradients 5e-6 of the largest entry of each tensor (float32 sums in another order); after an
update losses 1e-4, gradients 5e-4 (AdamW divides by the root of tiny second moments).
"""

import msgspec
import pytest
import torch
from support.rank_cases import COMPARISON, assert_same_gradients, assert_same_metrics, run_cases, write_models
from support.rank_program import MICROBATCH_TOKENS, Case, gradients_of
from support.tiny_trainer import make_trainer, sequences_of
from transformers import AutoModelForCausalLM

from areal_actors.core.values import WeightsLocation
from areal_actors.training.algorithms import Grpo
from areal_actors.weights.transfer import read_weights, without_ties

pytestmark = pytest.mark.slow

LAYOUTS = {
    "two-replicas": ((2, 1, 1), "qwen3"),
    "two-tensor-parts": ((1, 1, 2), "qwen3"),
    "two-sequence-parts": ((1, 2, 1), "qwen2"),
    "replicas-and-tensor-parts": ((2, 1, 2), "qwen3"),
    "replicas-and-sequence-parts": ((2, 2, 1), "qwen3"),
    "sequence-and-tensor-parts": ((1, 2, 2), "qwen2"),
    "two-stages": ((1, 1, 1, 2), "qwen2"),
    "sequence-parts-and-stages": ((1, 2, 1, 2), "qwen3"),
    "replicas-and-stages": ((2, 1, 1, 2), "qwen3"),
    "three-stages-of-tied-embeddings": ((1, 1, 1, 3), "qwen3"),
    "tensor-parts-and-stages": ((1, 1, 2, 2), "qwen3"),
}
WITH_REFERENCE = {"name": "grpo", "minibatches": 2, "kl": {"coefficient": 0.1}}
"""An algorithm of several updates, that wants the first model beside the trained one."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A Qwen3 with tied embeddings and a Qwen2 without, in folders."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def batches(models):
    """Two batches of ragged rows, by model."""
    trainers = {name: make_trainer(folder) for name, folder in models.items()}
    return {
        name: [sequences_of(trainer, seed=seed, off=0.5) for seed in range(2)] for name, trainer in trainers.items()
    }


@pytest.fixture(scope="module")
def alone(models, batches, tmp_path_factory):
    """Results of one rank alone, by model; it leaves a checkpoint between the steps."""
    found = {}
    for name, folder in models.items():
        trainer = make_trainer(folder, microbatch_tokens=MICROBATCH_TOKENS)
        logp, checkpoint = trainer.logp(batches[name][0]), str(tmp_path_factory.mktemp(name))
        first = trainer.step(batches[name][0])
        trainer.save(checkpoint)
        early = gradients_of(trainer)
        found[name] = {
            "logp": logp,
            "metrics": [first, trainer.step(batches[name][1])],
            "gradients": [early, gradients_of(trainer)],
            "checkpoint": checkpoint,
        }
    return found


@pytest.fixture(scope="module")
def layouts(models, batches, tmp_path_factory):
    """Results of every layout: one start of four processes for all of them."""
    cases = [Case(name=name, layout=layout, model=models[model]) for name, (layout, model) in LAYOUTS.items()]
    return run_cases(tmp_path_factory.mktemp("layouts"), cases, {models[name]: two for name, two in batches.items()})


@pytest.fixture(scope="module")
def ranks(models, batches, alone, tmp_path_factory):
    """Results of several ranks, by case: one start of four processes for all of them."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = [
        Case(name="one step", layout=(2, 1, 2), model=models["qwen3"], steps=(0,), save=str(folder / "of four")),
        Case(name="reshard", layout=(1, 2, 1), model=models["qwen3"], steps=(1,), load=str(folder / "of four")),
        Case(name="from one", layout=(2, 1, 1), model=models["qwen3"], steps=(1,), load=alone["qwen3"]["checkpoint"]),
        Case(
            name="one step of stages",
            layout=(2, 1, 1, 2),
            model=models["qwen3"],
            steps=(0,),
            save=str(folder / "of stages"),
        ),
        Case(
            name="stages from one",
            layout=(1, 1, 1, 3),
            model=models["qwen3"],
            steps=(1,),
            load=alone["qwen3"]["checkpoint"],
        ),
        Case(
            name="four from stages", layout=(2, 1, 2), model=models["qwen3"], steps=(1,), load=str(folder / "of stages")
        ),
        Case(
            name="stages and a reference",
            layout=(1, 1, 1, 2),
            model=models["qwen3"],
            steps=(1,),
            load=alone["qwen3"]["checkpoint"],
            publish=str(folder / "published"),
            algorithm=WITH_REFERENCE,
        ),
        Case(
            name="bfloat16 stages",
            layout=(1, 1, 1, 2),
            model=models["qwen2"],
            steps=(0,),
            settings={"dtype": "bfloat16"},
        ),
        Case(
            name="recomputed stages",
            layout=(2, 1, 1, 2),
            model=models["qwen2"],
            steps=(0,),
            settings={"recompute_activations": True},
        ),
    ]
    rows = {models[name]: two for name, two in batches.items()}
    cases = [msgspec.structs.replace(case, scored=False) for case in cases]
    return run_cases(folder, cases, rows) | {"folder": folder}


@pytest.mark.long
@pytest.mark.parametrize(("name", "model"), [(name, model) for name, (_, model) in LAYOUTS.items()])
def test_every_layout_gives_the_losses_gradients_and_log_probabilities_of_one_rank(layouts, alone, name, model):
    found, expected = layouts[name], alone[model]
    assert torch.allclose(found["logp"], expected["logp"], atol=3e-6, rtol=0)
    assert found["metrics"][0]["loss"] == pytest.approx(expected["metrics"][0]["loss"], abs=1e-6)
    assert_same_metrics(found["metrics"][0], expected["metrics"][0], 3e-6)
    assert_same_metrics(found["metrics"][1], expected["metrics"][1], 1e-4)
    assert_same_gradients(found["gradients"][0], expected["gradients"][0], 5e-6)
    assert_same_gradients(found["gradients"][1], expected["gradients"][1], 5e-4)


def test_the_gradient_of_tensor_parts_is_that_of_one_rank_norms_of_heads_among_it(ranks, alone):
    ours, theirs = ranks["one step"]["gradients"][0], alone["qwen3"]["gradients"][0]
    assert any("q_norm" in name for name in theirs)
    assert_same_gradients(ours, theirs, 5e-6)


@pytest.mark.parametrize("name", ["reshard", "four from stages"])
def test_what_four_ranks_saved_others_in_another_layout_go_on_from(ranks, alone, name):
    assert ranks[name]["version"] == 2
    assert_same_metrics(ranks[name]["metrics"][0], alone["qwen3"]["metrics"][1], 1e-4, COMPARISON)
    assert_same_gradients(ranks[name]["gradients"][0], alone["qwen3"]["gradients"][1], 5e-4)


@pytest.mark.parametrize("name", ["from one", "stages from one"])
def test_what_one_rank_saved_several_go_on_from(ranks, alone, name):
    assert_same_metrics(ranks[name]["metrics"][0], alone["qwen3"]["metrics"][1], 1e-4, COMPARISON)
    assert_same_gradients(ranks[name]["gradients"][0], alone["qwen3"]["gradients"][1], 5e-4)


@pytest.mark.parametrize("saved", ["of four", "of stages"])
def test_what_four_ranks_saved_one_continues_from_and_hugging_face_loads(ranks, alone, models, batches, saved):
    folder = str(ranks["folder"] / saved)
    trainer = make_trainer(models["qwen3"], microbatch_tokens=MICROBATCH_TOKENS)
    trainer.load(folder)
    own = {name: tensor.clone() for name, tensor in trainer._model.state_dict().items()}
    exported = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(exported[name], tensor) for name, tensor in own.items())
    assert_same_metrics(trainer.step(batches["qwen3"][1]), alone["qwen3"]["metrics"][1], 1e-4, COMPARISON)


def test_stages_exchange_proximal_and_reference_log_probabilities_and_publish_the_whole_model(
    ranks, alone, models, batches
):
    trainer = make_trainer(models["qwen3"], msgspec.convert(WITH_REFERENCE, Grpo), microbatch_tokens=MICROBATCH_TOKENS)
    trainer.load(alone["qwen3"]["checkpoint"])
    found = ranks["stages and a reference"]
    assert_same_metrics(found["metrics"][0], trainer.step(batches["qwen3"][1]), 1e-4, COMPARISON)
    assert found["metrics"][0]["reference_kl"] > 0
    published = read_weights(
        WeightsLocation(folder=str(ranks["folder"] / "published"), checksum=found["published"], model="")
    )
    own = without_ties(trainer._model.state_dict())
    assert published.keys() == own.keys()
    assert all(torch.allclose(published[name], tensor, atol=1e-4, rtol=0) for name, tensor in own.items())


@pytest.mark.parametrize("name", ["bfloat16 stages"])
def test_bfloat16_comes_close_to_float32(ranks, alone, name):
    assert ranks[name]["metrics"][0]["loss"] == pytest.approx(alone["qwen2"]["metrics"][0]["loss"], abs=0.05)


@pytest.mark.parametrize("name", ["recomputed stages"])
def test_activations_that_are_computed_again_give_the_same_gradient(ranks, alone, name):
    assert_same_gradients(ranks[name]["gradients"][0], alone["qwen2"]["gradients"][0], 5e-6)
