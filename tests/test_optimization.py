"""Optimizers and schedules, against torch's own and against the formulas."""

import math
from functools import partial

import pytest
import torch
from support.tiny_trainer import make_trainer, same, sequences_of, weights, write_model

from areal_actors.core.errors import EngineError
from areal_actors.training.algorithms import Grpo
from areal_actors.training.optimization import Optimization, learning_rate
from areal_actors.training.ranks import SINGLE_PROCESS
from areal_actors.training.settings import OptimizerSettings


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model_folder):
    return partial(make_trainer, model_folder)


def optimization(settings, total_steps=6):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, Optimization(model, settings, total_steps, SINGLE_PROCESS)


def walk(model, optimizing, steps):
    """Descend a fixed quadratic; the learning rates on the way."""
    seen = []
    for _ in range(steps):
        seen.append(optimizing.lr)
        optimizing.zero_grad()
        loss = (model.weight - 1).square().sum() + model.bias.square().sum()
        optimizing.backward(loss)
        optimizing.clip(float(loss.detach()), "this step")
        optimizing.optimizer.step()
        optimizing.set_steps(optimizing.steps + 1)
    return seen


HALF = math.sqrt(0.5) / 2


@pytest.mark.parametrize(
    ("schedule", "least", "expected"),
    [
        ("constant", 0.0, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", 0.0, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("linear", 0.2, [0.5, 1.0, 1.0, 0.8, 0.6, 0.4]),
        ("cosine", 0.0, [0.5, 1.0, 1.0, 0.5 + HALF, 0.5, 0.5 - HALF]),
        ("cosine", 0.2, [0.5, 1.0, 1.0, 0.2 + 0.8 * (0.5 + HALF), 0.6, 0.2 + 0.8 * (0.5 - HALF)]),
    ],
)
def test_the_learning_rate_warms_up_and_then_follows_its_schedule(schedule, least, expected):
    settings = OptimizerSettings(lr=1.0, schedule=schedule, warmup_steps=2, minimum_ratio=least)
    assert [learning_rate(settings, step, 6) for step in range(6)] == pytest.approx(expected)
    assert learning_rate(settings, 60, 6) == pytest.approx(1.0 if schedule == "constant" else least)
    assert walk(*optimization(settings), 6) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        (
            OptimizerSettings(lr=0.1, weight_decay=0.3),
            partial(torch.optim.AdamW, lr=0.1, betas=(0.9, 0.95), weight_decay=0.3),
        ),
        (
            OptimizerSettings(name="adam", lr=0.1, epsilon=0.1),
            partial(torch.optim.Adam, lr=0.1, betas=(0.9, 0.95), eps=0.1),
        ),
        (OptimizerSettings(name="sgd", lr=0.1, momentum=0.5), partial(torch.optim.SGD, lr=0.1, momentum=0.5)),
        (OptimizerSettings(name="adafactor", lr=0.1), partial(torch.optim.Adafactor, lr=0.1, weight_decay=0.0)),
    ],
    ids=["adamw", "adam", "sgd", "adafactor"],
)
def test_each_optimizer_is_that_of_torch(settings, theirs):
    model, ours = optimization(settings)
    plain, _ = optimization(settings)
    optimizer = theirs(plain.parameters())
    walk(model, ours, 4)
    for _ in range(4):
        optimizer.zero_grad()
        ((plain.weight - 1).square().sum() + plain.bias.square().sum()).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), settings.grad_clip)
        optimizer.step()
    assert torch.allclose(model.weight, plain.weight, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(model.weight, optimization(settings)[0].weight, atol=1e-3)


def test_a_loss_that_is_not_finite_forgets_the_gradient_and_names_the_step():
    model, optimizing = optimization(OptimizerSettings())
    optimizing.backward(model.weight.sum())
    with pytest.raises(EngineError, match="the loss of step 7 is nan; the weights are unchanged"):
        optimizing.clip(math.nan, "step 7")
    assert model.weight.grad is None


@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor", "muon"])
def test_resumed_in_mid_schedule_it_continues_to_the_last_bit(make, tmp_path, name):
    def trainer(seed):
        settings = OptimizerSettings(name=name, schedule="cosine", warmup_steps=2, momentum=0.5)
        return make(Grpo(minibatches=2), seed=seed, optimizer=settings)

    first = trainer(0)
    batches = [sequences_of(first, seed=seed, off=0.2) for seed in range(4)]
    for batch in batches[:2]:
        first.step(batch)
    first.save(str(tmp_path))
    second = trainer(5)
    second.load(str(tmp_path))
    metrics = [second.step(batch) for batch in batches[2:]]
    assert metrics == [first.step(batch) for batch in batches[2:]]
    assert metrics[0]["lr"] > metrics[1]["lr"]
    assert same(weights(first), weights(second))


def test_a_run_resumed_under_another_learning_rate_follows_the_new_one(make, tmp_path):
    first = make(lr=1e-3)
    first.step(sequences_of(first))
    first.save(str(tmp_path))
    second = make(lr=5e-4)
    second.load(str(tmp_path))
    assert second.step(sequences_of(first))["lr"] == 5e-4


@pytest.mark.parametrize("other", [{"betas": (0.5, 0.9)}, {"weight_decay": 0.1}, {"epsilon": 1e-2}])
def test_a_run_that_goes_on_with_other_settings_of_the_optimizer_takes_its_next_step_with_them(make, tmp_path, other):
    first = make(optimizer=OptimizerSettings())
    first.step(sequences_of(first))
    first.save(str(tmp_path))
    after = []
    for settings in (OptimizerSettings(), OptimizerSettings(**other)):
        trainer = make(optimizer=settings)
        trainer.load(str(tmp_path))
        trainer.step(sequences_of(first, seed=1))
        after.append(weights(trainer))
    assert not same(*after)


def newton_schulz(matrix):
    """The iteration of the paper, in double precision."""
    across = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    across = across / across.norm()
    for _ in range(5):
        square = across @ across.T
        across = 3.4445 * across + (-4.775 * square + 2.0315 * square @ square) @ across
    return across.T if matrix.shape[0] > matrix.shape[1] else across


def test_muon_takes_orthogonal_steps_of_the_size_of_adamws_along_the_momentum():
    settings = OptimizerSettings(name="muon", lr=0.5, muon_lr=0.1, grad_clip=1e9)
    model, ours = optimization(settings)
    weight, momentum = model.weight.detach().double().clone(), torch.zeros(2, 3, dtype=torch.float64)
    walk(model, ours, 3)
    for _ in range(3):
        gradient = 2 * (weight - 1)
        momentum = 0.95 * momentum + 0.05 * gradient
        step = newton_schulz(0.05 * gradient + 0.95 * momentum)
        weight = weight - 0.1 * 0.2 * math.sqrt(3) * step
    assert torch.allclose(model.weight.double(), weight, atol=2e-3)  # torch iterates in bfloat16
    assert [group["lr"] for group in ours.optimizer.param_groups] == [0.5, 0.1]


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest(make):
    trainer = make(optimizer=OptimizerSettings(name="muon", lr=1e-3, muon_lr=3e-3))
    adamw, muon = trainer._optimization.optimizer.param_groups
    named = dict(trainer._model.named_parameters())
    matrices = {name for name, weight in named.items() if any(weight is own for own in muon["params"])}
    assert matrices == {name for name, weight in named.items() if ".layers." in name and weight.ndim == 2}
    assert len(adamw["params"]) + len(muon["params"]) == len(named)
    before = weights(trainer)
    assert trainer.step(sequences_of(trainer, off=0.2))["lr"] == 1e-3
    assert all(not torch.equal(before[name], weight) for name, weight in weights(trainer).items() if name in matrices)
