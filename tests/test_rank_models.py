"""Adapters, critics and scalar heads are trained by several ranks as by one, in every layout.

Tolerances are those of test_rank_layouts.py. The optimizer is one that does not divide by what is almost 0, so that the
second step is as near as the first, to a factor.
"""

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.rank_cases import COMPARISON, QWEN3, assert_same_gradients, assert_same_metrics, run_cases, write_models
from support.rank_program import MICROBATCH_TOKENS, Case, gradients_of, logp_and_values
from support.tiny_trainer import make_trainer, sequences_of
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from areal_actors.core.values import WeightsLocation
from areal_actors.training.algorithms import AnyAlgorithm
from areal_actors.training.settings import LoraSettings, OptimizerSettings
from areal_actors.weights.adapters import read_adapter

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LORA = {"rank": 4, "alpha": 8}
LR = 0.1
OPTIMIZER = {"name": "sgd", "lr": LR, "momentum": 0.9}
LATER = 3e-5
"""Tolerance of a second step."""
LAYOUTS = {
    "adapter": [(1, 2, 2), (1, 1, 2, 2), (1, 2, 1, 2)],
    "adapter of biased layers": [(1, 1, 2)],
    "critic": [(1, 1, 1, 3), (1, 1, 2, 2), (1, 2, 1, 2)],
    "scalar head": [(2, 1, 1, 2)],
}
"""Replicas, sequence parts, tensor parts, and stages, by what is trained."""
SAVED = {"adapter": ((2, 1, 2), (2, 1, 1, 2)), "critic": ((2, 1, 1, 2), (1, 1, 2))}
"""The layout that writes a checkpoint after the first step, and the one that goes on from it."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Language models, and a scalar head that is not 0 (behind one that is, nothing has a gradient)."""
    folder = tmp_path_factory.mktemp("models")
    models = write_models(folder)
    Qwen3ForSequenceClassification(Qwen3Config(**QWEN3, num_labels=1, pad_token_id=0)).save_pretrained(
        folder / "scalar"
    )
    return models | {"scalar": str(folder / "scalar")}


@pytest.fixture(scope="module")
def kinds(models):
    """Model, algorithm and settings, by what is trained."""
    adapted = ({"name": "grpo", "kl": {"coefficient": 0.1}}, {"optimizer": OPTIMIZER, "lora": LORA})
    ppo = {
        "name": "ppo",
        "minibatches": 1,
        "bootstrap_truncated": True,
        "critic": {"model": models["scalar"], "lr": LR},
    }
    return {
        "adapter": (models["qwen3"], *adapted),
        "adapter of biased layers": (models["qwen2"], *adapted),
        "critic": (models["qwen3"], ppo, {"optimizer": OPTIMIZER}),
        "scalar head": (models["scalar"], {"name": "reward_model"}, {"optimizer": OPTIMIZER}),
    }


@pytest.fixture(scope="module")
def batches(models):
    """Two batches by model, for scalar heads of pairs of rows with one trained token each."""
    trainers = {name: make_trainer(models[name]) for name in ("qwen2", "qwen3")}
    sampled = {
        models[name]: [cut(sequences_of(trainer, seed=seed, off=0.5)) for seed in range(2)]
        for name, trainer in trainers.items()
    }
    pairs = [sequences_of(trainers["qwen3"], seed=seed, groups=6, members=2) for seed in range(2)]
    return sampled | {models["scalar"]: [[scored(row, number) for number, row in enumerate(rows)] for rows in pairs]}


def cut(rows):
    """Every fifth answer was cut by length."""
    return [msgspec.structs.replace(row, truncated=number % 5 == 0) for number, row in enumerate(rows)]


def scored(row, number):
    mask = np.arange(len(row.token_ids)) == len(row.token_ids) - 1
    return msgspec.structs.replace(row, loss_mask=mask, reward=float(number % 2))


def trainer_of(kind):
    model, algorithm, settings = kind
    tables = {"optimizer": OptimizerSettings, "lora": LoraSettings}
    more = {name: msgspec.convert(table, tables[name]) for name, table in settings.items()}
    return make_trainer(model, msgspec.convert(algorithm, AnyAlgorithm), microbatch_tokens=MICROBATCH_TOKENS, **more)


@pytest.fixture(scope="module")
def alone(kinds, batches, tmp_path_factory):
    """Results of one rank, from a checkpoint that it leaves before the first step and with another after it."""
    found = {}
    for name, kind in kinds.items():
        trainer, folder = trainer_of(kind), tmp_path_factory.mktemp("alone")
        torch.manual_seed(1)
        for parameter_name, parameter in trainer._model.named_parameters():
            if ".lora_B." in parameter_name:  # as long as it is 0, nothing before it has a gradient
                torch.nn.init.normal_(parameter.data, std=0.1)
        rows = batches[kind[0]]
        trainer.save(str(folder / "begun"))
        computed, first = logp_and_values(trainer, rows[0]), trainer.step(rows[0])
        early = gradients_of(trainer)
        trainer.save(str(folder / "stepped"))
        second = trainer.step(rows[1])
        found[name] = computed | {
            "metrics": [first, second],
            "gradients": [early, gradients_of(trainer)],
            "folder": folder,
        }
    return found


@pytest.fixture(scope="module")
def ranks(kinds, batches, alone, tmp_path_factory):
    """Results of several ranks, by case."""
    folder = tmp_path_factory.mktemp("ranks")

    def case(kind, name, layout, **more):
        model, algorithm, settings = kinds[kind]
        return Case(name=name, layout=layout, model=model, algorithm=algorithm, settings=settings, **more)

    cases = [
        case(kind, f"{kind} {layout}", layout, load=str(alone[kind]["folder"] / "begun"))
        for kind, layouts in LAYOUTS.items()
        for layout in layouts
    ]
    for kind, (first, second) in SAVED.items():
        begun, saved, published = (
            str(alone[kind]["folder"] / "begun"),
            str(folder / kind),
            str(folder / f"published {kind}"),
        )
        cases += [
            case(kind, f"{kind} saved", first, load=begun, steps=(0,), save=saved, publish=published),
            case(kind, f"{kind} resharded", second, load=saved, steps=(1,)),
        ]
    return run_cases(folder, cases, batches) | {"folder": folder}


@pytest.mark.parametrize(
    ("kind", "layout"), [(kind, layout) for kind, layouts in LAYOUTS.items() for layout in layouts], ids=str
)
def test_every_layout_trains_what_one_rank_trains(ranks, alone, kind, layout):
    found, expected = ranks[f"{kind} {layout}"], alone[kind]
    assert_same_first_step(found, expected)
    assert_same_metrics(found["metrics"][1], expected["metrics"][1], LATER, COMPARISON)
    assert_same_gradients(found["gradients"][1], expected["gradients"][1], LATER)


def assert_same_first_step(found, expected):
    for column in {"logp", "values"} & expected.keys():
        assert torch.allclose(found[column], expected[column], atol=3e-6, rtol=0)
    for loss in {"loss", "critic_loss"} & expected["metrics"][0].keys():
        assert found["metrics"][0][loss] == pytest.approx(expected["metrics"][0][loss], abs=1e-6)
    assert_same_metrics(found["metrics"][0], expected["metrics"][0], 3e-6, COMPARISON)
    assert_same_gradients(found["gradients"][0], expected["gradients"][0], 5e-6)


@pytest.mark.parametrize("kind", SAVED)
def test_what_several_ranks_saved_others_in_another_layout_and_one_go_on_from(ranks, alone, kinds, batches, kind):
    assert_same_first_step(ranks[f"{kind} saved"], alone[kind])
    found, expected = ranks[f"{kind} resharded"], alone[kind]["metrics"][1]
    assert found["version"] == 2
    assert_same_metrics(found["metrics"][0], expected, LATER, COMPARISON)
    assert_same_gradients(found["gradients"][0], alone[kind]["gradients"][1], LATER)
    trainer = trainer_of(kinds[kind])
    trainer.load(str(ranks["folder"] / kind))
    assert_same_metrics(trainer.step(batches[kinds[kind][0]][1]), expected, LATER, COMPARISON)


def test_what_several_ranks_publish_of_an_adapter_is_the_adapter_alone_and_whole(ranks, alone, kinds):
    published = ranks["folder"] / "published adapter"
    assert sorted(file.name for file in published.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    model = kinds["adapter"][0]
    adapter = read_adapter(
        WeightsLocation(folder=str(published), checksum=ranks["adapter saved"]["published"], model=model)
    )
    whole = adapter.apply_to(AutoModelForCausalLM.from_pretrained(model).state_dict())
    exported, expected = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (ranks["folder"] / "adapter", alone["adapter"]["folder"] / "stepped")
    )
    assert len(whole) == 7 * QWEN3["num_hidden_layers"]
    for name, tensor in exported.items():
        assert torch.allclose(tensor, expected[name], atol=1e-5, rtol=0), name
        assert torch.equal(tensor, whole.get(name, expected[name])), name
    apart = load_file(ranks["folder"] / "adapter" / "adapter" / "adapter_model.safetensors")
    sent = load_file(published / "adapter_model.safetensors")
    assert apart.keys() == sent.keys()
    assert all(torch.equal(apart[name], tensor) for name, tensor in sent.items())


def test_a_critic_in_stages_is_saved_as_a_sequence_classifier_of_hugging_face(ranks, alone):
    saved, expected = (
        AutoModelForSequenceClassification.from_pretrained(folder / "critic").state_dict()
        for folder in (ranks["folder"] / "critic", alone["critic"]["folder"] / "stepped")
    )
    assert saved.keys() == expected.keys()
    assert all(torch.allclose(saved[name], tensor, atol=1e-5, rtol=0) for name, tensor in expected.items())
