"""Results do not depend on micro-batching, on what is kept in memory, or on forward passes without training."""

from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_trainer import logps, make_trainer, same, sequences_of, weights, write_model

from areal_actors.core.errors import EngineError
from areal_actors.training.algorithms import Dpo, Grpo, Ppo
from areal_actors.training.step_data import drop_masked_tokens, step_tokens


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model_folder):
    return partial(make_trainer, model_folder)


def gradients(trainer):
    return [parameter.grad.clone() for parameter in trainer._model.parameters()]


class Keeping(Grpo, tag="keeping"):
    """GRPO that leaves out the first trained token of every other row."""

    def advantages(self, step):
        firsts = torch.cat([torch.tensor([True]), step.sequences[1:] != step.sequences[:-1]])
        return msgspec.structs.replace(super().advantages(step), kept=~(firsts & (step.sequences % 2 == 0)))


def test_the_exact_gradient_of_each_parameter_does_not_depend_on_accumulation_for_ppo_with_its_critic(make):
    seen = []
    for budget in (1, 40, 10_000):
        trainer = make(Ppo(), microbatch_tokens=budget)
        for _ in range(2):
            metrics = trainer.step(sequences_of(make(), off=0.3))
        seen.append((metrics, [parameter.grad.clone() for parameter in trainer._critic.model.parameters()]))
    for metrics, critic in seen[1:]:
        assert metrics["critic_loss"] == pytest.approx(seen[0][0]["critic_loss"], abs=1e-6)
        for ours, theirs in zip(critic, seen[0][1], strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-6)


def test_pairs_stay_together_however_small_the_budget(make):
    rows = [
        msgspec.structs.replace(row, reward=float(number % 2))
        for number, row in enumerate(sequences_of(make(), members=2))
    ]
    losses = [make(Dpo(), microbatch_tokens=budget).step(rows)["loss"] for budget in (1, 10_000)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize("more", [{}, {"dtype": "bfloat16"}], ids=["float32", "bfloat16"])
def test_activations_computed_again_give_the_same_gradient_to_the_last_bit(make, more):
    plain, again = (make(recompute_activations=wanted, prefix_sharing="off", **more) for wanted in (False, True))
    rows = sequences_of(plain, off=0.4)
    passes = []
    layer = again._model.model.layers[0].mlp
    layer.register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    assert plain.step(rows) == again.step(rows)
    assert same(weights(plain), weights(again))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients(plain), gradients(again), strict=True))
    assert passes.count(True) == 2  # forward, and once more on the way back; parity looks without gradient


def test_evaluating_changes_neither_weights_nor_the_next_step(make):
    one, other = make(Grpo(minibatches=2)), make(Grpo(minibatches=2))
    rows = sequences_of(one, off=0.3)
    metrics = other.evaluate(rows)
    assert metrics["loss"] == pytest.approx(make().step(rows)["loss"], abs=1e-6)
    assert metrics["trained_tokens"] == sum(row.loss_mask.sum() for row in rows)
    assert one.step(rows) == other.step(rows)


def test_a_step_is_its_preparation_and_its_update(make):
    one, other = make(Grpo(minibatches=2)), make(Grpo(minibatches=2))
    rows = sequences_of(one, off=0.3)
    prepared = other.prepare(rows)
    assert prepared.tokens.proximal.tolist() == pytest.approx(other.logp(rows).tolist(), abs=1e-5)
    assert other.weight_version == 0
    assert other.update(prepared) == one.step(rows)
    assert same(weights(one), weights(other))


def test_log_probabilities_come_row_after_row_whatever_the_micro_batches(make):
    trainer = make(microbatch_tokens=30)
    rows = sequences_of(trainer)
    expected = [logp for row in rows for logp in logps(trainer._model, row.token_ids)[row.loss_mask[1:]]]
    assert trainer.logp(rows).tolist() == pytest.approx(expected, abs=1e-5)


def test_what_an_algorithm_does_not_keep_is_as_if_it_had_been_masked_but_for_the_advantages(make):
    rows = sequences_of(make(), off=0.3)
    masked = []
    for number, row in enumerate(rows):
        mask = row.loss_mask.copy()
        if number % 2 == 0:
            mask[np.flatnonzero(mask)[0]] = False
        masked.append(msgspec.structs.replace(row, loss_mask=mask))
    one, other = make(Keeping()), make()
    for trained, batch in ((one, rows), (other, masked)):
        trained.step(batch)
    assert same(weights(one), weights(other))


def test_an_algorithm_that_keeps_nothing_is_refused(make):
    rows = sequences_of(make())
    tokens = step_tokens(rows, 0)
    advantages = msgspec.structs.replace(
        Grpo().advantages(tokens), kept=torch.zeros(len(tokens.sequences), dtype=torch.bool)
    )
    with pytest.raises(EngineError, match="masks every token of this batch"):
        drop_masked_tokens(rows, tokens, advantages)


def test_the_columns_of_a_step_hold_every_trained_token_once(make):
    rows = sequences_of(make(), off=0.3)
    tokens = step_tokens(rows, 3)
    assert tokens.sequences.tolist() == [
        index for index, row in enumerate(rows) for _ in range(int(row.loss_mask.sum()))
    ]
    assert tokens.behaviour.tolist() == [logprob for row in rows for logprob in row.logprobs[row.loss_mask].tolist()]
    assert tokens.sampled.tolist() == [int((row.versions >= 0).sum()) for row in rows]
    assert (tokens.groups.tolist(), tokens.weight_version) == ([row.group for row in rows], 3)
