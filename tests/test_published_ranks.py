"""Tiny copies of published models on two ranks: sharded all of them, in parts and stages those whose blocks are
known."""

import pytest
import torch
from safetensors.torch import load_file
from support.published_models import PUBLISHED, config_of, write_published
from support.published_outcomes import LR, lost_tensors, make_trainer, sequences

from areal_actors.core.errors import ArealError
from areal_actors.training.algorithms import Sft
from areal_actors.training.distributed.group import RankGroup
from areal_actors.training.distributed.stages import FAMILIES
from areal_actors.training.settings import OptimizerSettings, TrainerSettings

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

UNTRAINED = ("gemma2", "granite")
TOWERS = ("gemma3", "ministral3")
"""Loaded with a vision tower, below which their blocks are."""
SHARDED = [name for name in PUBLISHED if name not in (*UNTRAINED, *TOWERS)]
SPLIT = [name for name in SHARDED if config_of(name)["model_type"] in FAMILIES]


def group_of(folder, **layout):
    optimizer = OptimizerSettings(name="sgd", lr=LR, grad_clip=1e9)
    settings = TrainerSettings(device="cpu", ranks=2, rank_timeout_seconds=60.0, optimizer=optimizer, **layout)
    return RankGroup(folder, Sft(), settings, total_steps=10)


def assert_trains_alike(name, place, **layout):
    folder = write_published(name, place / "model")
    alone, group = make_trainer(folder), group_of(folder, **layout)
    try:
        assert group.step(sequences())["loss"] == pytest.approx(alone.step(sequences())["loss"], abs=1e-5)
        group.save(str(place / "group"))
        alone.save(str(place / "alone"))
        ours, theirs = (load_file(place / which / "model.safetensors") for which in ("group", "alone"))
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            assert torch.allclose(ours[key], tensor, atol=2e-6, rtol=0), key
        assert lost_tensors(name, folder, str(place / "group")) == []
        group.load(str(place / "alone"))
        assert torch.allclose(group.logp(sequences(1)), alone.logp(sequences(1)), atol=1e-4)
    finally:
        group.close()


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_ranks_train_what_one_trains(name, tmp_path):
    assert_trains_alike(name, tmp_path)


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("layout", ["tensor_parallel", "pipeline_parallel"])
def test_parts_and_stages_train_what_one_rank_trains(name, layout, tmp_path):
    assert_trains_alike(name, tmp_path, **{layout: 2})


@pytest.mark.parametrize(
    ("name", "layout", "reason"),
    [
        ("gemma3", {}, "no list of blocks to shard"),
        ("gpt_oss", {"tensor_parallel": 2}, "does not support model type gpt_oss"),
        ("qwen3_next", {"pipeline_parallel": 2}, "does not support model type qwen3_next"),
        ("qwen3_next", {"sequence_parallel": 2}, "layers of kind linear_attention are not supported"),
        ("mistral_window", {"sequence_parallel": 2}, "sliding-window attention are not supported"),
    ],
)
def test_other_layouts_are_refused_with_the_reason(name, layout, reason, tmp_path):
    with pytest.raises(ArealError, match=reason):
        group_of(write_published(name, tmp_path / "model"), **layout)
