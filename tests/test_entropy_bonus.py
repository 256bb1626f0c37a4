"""The entropy bonus of a loss, beside the entropy of the model's own distributions."""

import msgspec
import pytest
import torch
from support.algorithm_cases import FROM_REWARDS, batch_of, stories
from support.tiny_trainer import make_trainer, same, sequences_of, weights, write_model

from areal_actors.training.algorithms import Grpo
from areal_actors.training.algorithms.veto import Veto

COEFFICIENT = 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def mean_entropy(trainer, rows):
    """By the model's own logits, over the trained tokens."""
    entropies = []
    for row in rows:
        logits = trainer._model(input_ids=torch.as_tensor(row.token_ids)[None]).logits[0, :-1]
        chosen = torch.as_tensor(row.loss_mask[1:])
        entropies.append(torch.distributions.Categorical(logits=logits).entropy()[chosen])
    return torch.cat(entropies).mean()


def test_with_equal_rewards_the_gradient_is_that_of_the_mean_entropy(folder):
    trainer = make_trainer(folder, Grpo(entropy_coefficient=COEFFICIENT))
    rows = [msgspec.structs.replace(row, reward=1.0) for row in sequences_of(trainer)]
    expected = -COEFFICIENT * mean_entropy(trainer, rows)
    expected.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in trainer._model.parameters()]).norm().item()
    trainer._model.zero_grad()
    metrics = trainer.step(rows)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-3)
    assert metrics["entropy_bonus"] == pytest.approx(COEFFICIENT * metrics["entropy"], rel=1e-5)


def test_micro_batches_change_nothing_and_the_entropy_rises(folder):
    one, several = (
        make_trainer(folder, Grpo(entropy_coefficient=COEFFICIENT), microbatch_tokens=tokens) for tokens in (4096, 16)
    )
    rows = [msgspec.structs.replace(row, reward=1.0) for row in sequences_of(one)]
    before = mean_entropy(one, rows).item()
    assert one.step(rows)["grad_norm"] == pytest.approx(several.step(rows)["grad_norm"], rel=1e-4)
    assert mean_entropy(one, rows).item() > before


def test_without_a_coefficient_equal_rewards_change_nothing(folder):
    trainer = make_trainer(folder)
    rows = [msgspec.structs.replace(row, reward=1.0) for row in sequences_of(trainer)]
    before, metrics = weights(trainer), trainer.step(rows)
    assert "entropy_bonus" not in metrics
    assert same(before, weights(trainer))


@pytest.mark.parametrize("kind", FROM_REWARDS.values())
def test_the_loss_of_every_algorithm_is_less_by_it(kind):
    named = {"teacher": "big"} if "teacher" in kind.__struct_fields__ else {}
    algorithm = kind(**named, entropy_coefficient=COEFFICIENT)
    assert algorithm.rewards_entropy
    batch, logp = batch_of(stories(3))
    entropy = torch.rand(len(logp), dtype=torch.float64)
    plain, with_bonus = (
        algorithm.loss(batch, logp),
        algorithm.loss(msgspec.structs.replace(batch, entropy=entropy), logp),
    )
    assert torch.allclose(plain.losses - with_bonus.losses, COEFFICIENT * entropy)


def test_a_vetoed_token_keeps_it():
    algorithm = Grpo(entropy_coefficient=COEFFICIENT)
    assert isinstance(algorithm.correction, Veto)
    batch, logp = batch_of(stories(3))
    entropy = torch.rand(len(logp), dtype=torch.float64)
    far = msgspec.structs.replace(batch, behaviour=batch.behaviour - 30.0, entropy=entropy)
    assert torch.allclose(algorithm.loss(far, logp).losses, -COEFFICIENT * entropy)
