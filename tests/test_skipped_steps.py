"""Steps of the real trainer that change no weight: counted without rows, refused where loss or gradient is not
finite."""

from __future__ import annotations

import copy
import math

import msgspec
import pytest
import torch
from support.tiny_trainer import make_trainer, same, sequences_of, weights, write_model

from areal_actors.core.errors import UntrainableBatch
from areal_actors.sequences.sequence_check import SequenceLimits
from areal_actors.training.algorithms import Grpo, Ppo
from areal_actors.training.engine import sequence_limits
from areal_actors.training.settings import OptimizerSettings
from areal_actors.training.step_data import make_minibatches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def state(trainer):
    """The optimizer's state, in which a step would leave its traces."""
    return copy.deepcopy(trainer._optimization.optimizer.state_dict()["state"])


def same_state(left, right):
    return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)


@pytest.mark.parametrize("algorithm", [Grpo(), Ppo()], ids=["grpo", "ppo"])
def test_a_step_without_rows_is_counted_and_changes_nothing_but_the_schedule(folder, algorithm):
    falling = OptimizerSettings(lr=1e-3, schedule="linear")
    trainer = make_trainer(folder, algorithm, optimizer=falling)
    assert trainer.step(()) == {}, "torch warns of a schedule that steps before its optimizer; that must not end a run"
    trainer.step(sequences_of(trainer))
    before, optimizer, rate = weights(trainer), state(trainer), trainer._optimization.lr
    assert trainer.step(()) == {}
    assert same(before, weights(trainer))
    assert same_state(optimizer, state(trainer))
    assert (trainer.weight_version, rate, trainer._optimization.lr) == (3, pytest.approx(8e-4), pytest.approx(7e-4))
    assert trainer.step(sequences_of(trainer))["parity_tokens"] > 0
    assert 3 in trainer._logprob_check.copies


def test_a_loss_that_is_not_finite_leaves_weights_and_optimizer_as_they_were(folder, monkeypatch):
    trainer, other = make_trainer(folder), make_trainer(folder)
    rows = sequences_of(trainer, off=0.3)
    for one in (trainer, other):
        one.step(rows)
    before, optimizer = weights(trainer), state(trainer)
    sound = Grpo.loss
    broken = lambda self, batch, logp: msgspec.structs.replace(sound(self, batch, logp), losses=logp * math.nan)  # noqa: E731
    monkeypatch.setattr(Grpo, "loss", broken)
    with pytest.raises(UntrainableBatch, match="the loss of step 1 is nan"):
        trainer.step(rows)
    monkeypatch.undo()
    assert same(before, weights(trainer))
    assert same_state(optimizer, state(trainer))
    assert trainer.weight_version == 1
    for one in (trainer, other):
        one.step(())
        one.step(rows)
    assert same(weights(trainer), weights(other)), "nothing of the refused step is left in the next one"


def test_an_exception_in_a_pass_refuses_its_batch_and_leaves_weights_and_optimizer_as_they_were(folder, monkeypatch):
    trainer, other = make_trainer(folder), make_trainer(folder)
    sequences = sequences_of(trainer, off=0.3)
    for engine in (trainer, other):
        engine.step(sequences)
    before, optimizer = weights(trainer), state(trainer)

    def fail(*_):
        raise RuntimeError("The size of tensor a (40) must match the size of tensor b (256)")

    refused = pytest.raises(
        UntrainableBatch, match=r"RuntimeError: The size of tensor a .* \(test_skipped_steps.py:\d+\)"
    )
    hook = next(trainer._model.parameters()).register_hook(fail)
    with refused:
        trainer.step(sequences)
    hook.remove()
    monkeypatch.setattr(Grpo, "loss", fail)
    with refused:
        trainer.step(sequences)
    monkeypatch.undo()
    assert same(before, weights(trainer))
    assert same_state(optimizer, state(trainer))
    assert trainer.weight_version == 1
    for engine in (trainer, other):
        engine.step(())
        engine.step(sequences)
    assert same(weights(trainer), weights(other)), "nothing of the refused step is left in the next one"


def test_an_update_that_is_not_finite_is_left_out_of_a_step_that_has_others(folder, monkeypatch):
    trainer = make_trainer(folder, Grpo(minibatches=4))
    rows = sequences_of(trainer, off=0.3)
    first = make_minibatches(rows, 4, trainer._generator)[0]
    trainer = make_trainer(folder, Grpo(minibatches=4))
    sound = Grpo.loss

    def broken(self, batch, logp):
        found = sound(self, batch, logp)
        scale = torch.where(batch.groups == rows[first[0]].group, math.nan, 1.0)
        return msgspec.structs.replace(found, losses=found.losses * scale)

    monkeypatch.setattr(Grpo, "loss", broken)
    before = weights(trainer)
    metrics = trainer.step(rows)
    assert metrics["skipped_updates"] == 1
    assert math.isfinite(metrics["loss"])
    assert not same(before, weights(trainer))
    assert all(tensor.isfinite().all() for tensor in weights(trainer).values())
    assert trainer.weight_version == 1


def test_the_limits_of_a_model_are_read_from_its_folder(folder, tmp_path):
    trainer = make_trainer(folder)
    config = trainer._model.config
    assert (
        trainer.limits
        == sequence_limits(folder)
        == SequenceLimits(vocabulary=config.vocab_size, context=config.max_position_embeddings)
    )
    assert sequence_limits(str(tmp_path)) == SequenceLimits()
