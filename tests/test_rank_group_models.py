"""A trainer that is several processes, of an adapter and of a policy with its critic: what one process alone does, a
killed rank or not."""

import os
import signal
import threading

import pytest
import torch
from safetensors.torch import load_file
from support.rank_cases import COMPARISON, assert_same_metrics
from support.tiny_trainer import make_trainer, sequences_of, write_model

from areal_actors.core.errors import RanksLost
from areal_actors.training.algorithms import Grpo, Ppo
from areal_actors.training.algorithms.base import CriticSettings
from areal_actors.training.distributed.group import RankGroup
from areal_actors.training.settings import LoraSettings, OptimizerSettings, TrainerSettings

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KINDS = {
    "an adapter in tensor parts": (Grpo(), {"lora": LoraSettings(rank=4, alpha=8), "tensor_parallel": 2}),
    "a critic in stages": (Ppo(minibatches=1, critic=CriticSettings(lr=1e-3)), {"pipeline_parallel": 2}),
}
PARTS = ("tensor_parallel", "pipeline_parallel")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def batches(model_folder):
    trainer = make_trainer(model_folder)
    return [sequences_of(trainer, seed=seed, off=0.5) for seed in range(2)]


def tensors(folder):
    """All tensors of all files below a folder, by file and name."""
    return {
        (str(file.relative_to(folder)), name): tensor
        for file in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, atol=1e-4, rtol=0), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_learns_what_one_rank_learns_and_continues_from_its_checkpoint_when_a_rank_is_killed(
    kind, model_folder, batches, tmp_path
):
    algorithm, settings = KINDS[kind]
    alone = make_trainer(
        model_folder, algorithm, **{name: value for name, value in settings.items() if name not in PARTS}
    )
    settings = TrainerSettings(
        device="cpu", ranks=2, rank_timeout_seconds=60.0, optimizer=OptimizerSettings(lr=1e-3), **settings
    )
    group = RankGroup(model_folder, algorithm, settings, total_steps=10, seed=0)
    try:
        assert_same_metrics(group.step(batches[0]), alone.step(batches[0]), 1e-5)
        for name, trainer in (("group", group), ("alone", alone)):
            trainer.publish(str(tmp_path / name / "published"))
            trainer.save(str(tmp_path / name / "saved"))
        published, saved = (tensors(tmp_path / "group" / what) for what in ("published", "saved"))
        assert_close(published, tensors(tmp_path / "alone" / "published"))
        assert_close(saved, tensors(tmp_path / "alone" / "saved"))

        kill_in_the_next_step(group)
        with pytest.raises(RanksLost, match=r"(?s)rank 1 of 2 was ended by signal 9 .*in step 1"):
            group.step(batches[1])
        group.load(str(tmp_path / "group" / "saved"))
        again = group.publish(str(tmp_path / "group" / "again"))
        assert (group.weight_version, again.model) == (1, model_folder)
        assert all(
            torch.equal(published[name], tensor) for name, tensor in tensors(tmp_path / "group" / "again").items()
        )

        expected = alone.step(batches[1])
        assert_same_metrics(group.step(batches[1]), expected, 1e-4, COMPARISON)
        assert torch.allclose(group.logp(batches[1]), alone.logp(batches[1]), atol=1e-4)
        if alone._critic:
            assert torch.allclose(group.values(batches[1]), alone.values(batches[1]), atol=1e-4)
        alone.load(str(tmp_path / "group" / "saved"))
        assert_same_metrics(alone.step(batches[1]), expected, 1e-4, COMPARISON)
    finally:
        group.close()


def kill_in_the_next_step(group):
    """Stop one rank, so that the other waits for it within the step, and then kill the other."""
    os.kill(group.pids[0], signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (group.pids[1], signal.SIGKILL)).start()
