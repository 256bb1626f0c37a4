"""A trainer that is several processes: the same protocol, and what becomes of it when one of them fails."""

import os
import signal
import subprocess
import sys
import threading

import msgspec
import numpy as np
import psutil
import pytest
import torch
from support.rank_cases import COMPARISON
from support.tiny_trainer import make_trainer, sequences_of, write_model

from areal_actors.core.errors import RanksLost, UntrainableBatch
from areal_actors.training.algorithms import Grpo
from areal_actors.training.distributed.commands import Frames
from areal_actors.training.distributed.group import RankGroup
from areal_actors.training.settings import OptimizerSettings, TrainerSettings
from areal_actors.weights.transfer import read_weights

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def batches(model_folder):
    trainer = make_trainer(model_folder)
    return [sequences_of(trainer, seed=seed, off=0.5) for seed in range(3)]


@pytest.fixture(scope="module")
def expected(model_folder, batches):
    """Results of one rank alone for three steps."""
    trainer = make_trainer(model_folder)
    return [trainer.step(rows) for rows in batches]


@pytest.fixture(scope="module")
def group(model_folder):
    """Two replicas; one start for all tests of this module, but for those that kill it."""
    group = RankGroup(model_folder, Grpo(), settings(), total_steps=10, seed=0)
    yield group
    group.close()


def settings(**changed):
    return TrainerSettings(
        **{
            "device": "cpu",
            "ranks": 2,
            "rank_timeout_seconds": 60.0,
            "optimizer": OptimizerSettings(lr=1e-3),
            **changed,
        }
    )


def close_to(ours, theirs):
    # How rows are packed; and copies of older weights, which no checkpoint of ranks holds.
    names = theirs.keys() - COMPARISON
    return ours.keys() - COMPARISON == names and all(
        ours[name] == pytest.approx(theirs[name], abs=1e-4, rel=1e-4) for name in names
    )


@pytest.mark.long
def test_a_group_steps_publishes_saves_and_is_started_anew_as_a_whole_when_a_rank_is_killed_in_a_step(
    group, model_folder, batches, expected, tmp_path
):
    first = group.step(batches[0])
    assert close_to(first, expected[0])
    assert group.weight_version == 1
    assert group.logp(batches[1]).shape == (sum(int(row.loss_mask[1:].sum()) for row in batches[1]),)
    weights = read_weights(group.publish(str(tmp_path / "v1")))
    group.save(str(tmp_path / "checkpoint"))
    assert close_to(group.step(batches[1]), expected[1])

    before = group.pids
    hold(before[0])
    killer = threading.Timer(0.5, os.kill, (before[1], signal.SIGKILL))
    killer.start()
    with pytest.raises(RanksLost, match=r"rank 1 of 2 was ended by signal 9 .*in step 2") as caught:
        group.step(batches[2])
    assert "the group restarts with its initial weights" in str(caught.value)
    assert not any(psutil.pid_exists(pid) for pid in before)
    assert group.weight_version == 0

    group.load(str(tmp_path / "checkpoint"))
    assert group.weight_version == 1
    again = read_weights(group.publish(str(tmp_path / "again")))
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    assert not set(before) & set(group.pids)
    assert close_to(group.step(batches[1]), expected[1])
    assert close_to(group.step(batches[2]), expected[2])


def test_sequences_are_sent_once_for_all_ranks(group, batches, monkeypatch):
    sent, send = [], Frames.send
    monkeypatch.setattr(Frames, "send", lambda frames, body: (sent.append(len(body)), send(frames, body))[1])
    group.logp(batches[0])
    columns = sum(row.token_ids.nbytes for row in batches[0])
    assert len(sent) == 2
    assert max(sent) > columns
    assert min(sent) < 100


def hold(pid):
    """Stop a rank, so that the others wait for it within the step."""
    os.kill(pid, signal.SIGSTOP)


def test_what_every_rank_refuses_is_raised_as_it_is_and_the_group_continues(group, batches):
    version, pids = group.weight_version, group.pids
    masked = [msgspec.structs.replace(row, loss_mask=np.zeros_like(row.loss_mask)) for row in batches[0]]
    with pytest.raises(UntrainableBatch, match="no sequence of the batch has a trained token") as caught:
        group.step(masked)
    assert "the group restarts" not in str(caught.value)
    assert group.evaluate(batches[0])["sequences"] == len(batches[0])
    assert (group.weight_version, group.pids) == (version, pids)


def test_ranks_count_a_step_that_changes_no_weight_together(group, batches):
    version, before = group.weight_version, group.logp(batches[0])
    assert group.step(()) == {}
    assert group.weight_version == version + 1
    assert torch.equal(group.logp(batches[0]), before)


def test_ranks_end_with_the_process_that_started_them(model_folder, tmp_path):
    program = (
        "import os, sys, time\n"
        "from areal_actors.training.algorithms import Grpo\n"
        "from areal_actors.training.distributed.rank_processes import RankProcesses\n"
        "members = RankProcesses(2, '', 60.0)\n"
        "print(*members.pids, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    ranks = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, alive = psutil.wait_procs(ranks, timeout=300)
    assert len(gone) == 2, alive


@pytest.mark.long
def test_the_checksum_is_that_of_one_rank_alone_and_a_step_taken_again_from_a_checkpoint_has_the_same_one(
    model_folder, batches, tmp_path
):
    first = RankGroup(model_folder, Grpo(), settings(), total_steps=10, seed=0)
    try:
        assert first.checksum() == make_trainer(model_folder).checksum()
        first.step(batches[0])
        first.save(str(tmp_path / "step-1"))
        saved = first.checksum()
        assert first.publish(str(tmp_path / "v1")).checksum == saved
        first.step(batches[1])
        expected = first.checksum()
    finally:
        first.close()
    again = RankGroup(model_folder, Grpo(), settings(), total_steps=10, seed=0)
    try:
        again.load(str(tmp_path / "step-1"))
        assert again.checksum() == saved
        again.step(batches[1])
        assert again.checksum() == expected
    finally:
        again.close()
