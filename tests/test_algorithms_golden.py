"""Every algorithm's advantages and loss against its formula in plain python, and gradients against numeric ones."""

import math

import msgspec
import pytest
import torch
from support import algorithm_formulas as by_hand
from support.algorithm_cases import EVERY, FROM_REWARDS, SEVERAL, batch_of, by_row, step_of, stories, with_advantages

from areal_actors.training.algorithms import (
    Cispo,
    Dapo,
    Distillation,
    DrGrpo,
    Gmpo,
    Grpo,
    Gspo,
    GspoToken,
    LitePpo,
    M2po,
    Ppo,
    Rae,
    ReinforcePlusPlus,
    Rloo,
    Sapo,
)
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.dapo import Overlong


def near(columns):
    return [pytest.approx(column, rel=1e-10, abs=1e-10) for column in columns]


def standardised(rows):
    return by_hand.spread(rows, by_hand.group_standard(rows, by_hand.rewards_of(rows)))


def centered(rows):
    return by_hand.spread(rows, by_hand.group_mean(rows, by_hand.rewards_of(rows)))


def others(rows):
    return by_hand.spread(rows, by_hand.others_mean(rows, by_hand.rewards_of(rows)))


def lite(rows, *, around="batch"):
    return by_hand.spread(rows, by_hand.batch_standard(rows, by_hand.rewards_of(rows), around))


def dapo(rows):
    rewards = [
        [reward + 0.5 * by_hand.overlong(rows, row.episode, longest=9, buffer=6) for reward in row.rewards]
        for row in rows
    ]
    return by_hand.spread(rows, by_hand.group_standard(rows, rewards))


def above_baseline(rows):
    return by_hand.spread(rows, [[reward - row.baseline for reward in row.rewards] for row in rows])


def generalised(rows, *, discount=1.0, gae_lambda=0.95, bootstrap=False):
    return [
        by_hand.gae(rows, row, by_hand.token_rewards(row, [0.0] * len(row.logp)), discount, gae_lambda, bootstrap)
        for row in rows
    ]


GOLDEN = {
    "grpo": (Grpo(), standardised, by_hand.decoupled),
    "grpo, clip higher": (Grpo(clip=0.1, clip_higher=0.3), standardised, lambda row: by_hand.decoupled(row, 0.1, 0.3)),
    "grpo, plain": (Grpo(correction=Correction(decoupled=False)), standardised, by_hand.plain),
    "grpo, whitened": (
        Grpo(normalize_advantages=True),
        lambda rows: by_hand.standard(rows, standardised(rows)),
        by_hand.decoupled,
    ),
    "grpo, no std": (Grpo(scale_by_std=False), centered, by_hand.decoupled),
    "dr_grpo": (DrGrpo(), centered, by_hand.decoupled),
    "dapo": (
        Dapo(overlong=Overlong(longest=9, buffer=6, factor=0.5)),
        dapo,
        lambda row: by_hand.decoupled(row, 0.2, 0.28),
    ),
    "dapo, no penalty": (Dapo(), standardised, lambda row: by_hand.decoupled(row, 0.2, 0.28)),
    "gspo": (Gspo(), standardised, lambda row: by_hand.gspo(row, 3e-4, 4e-4)),
    "gspo, wide": (Gspo(clip=0.2, clip_higher=0.25), standardised, lambda row: by_hand.gspo(row, 0.2, 0.25)),
    "gspo_token": (GspoToken(), standardised, lambda row: by_hand.gspo(row, 3e-4, 4e-4)),
    "gspo_token, wide": (
        GspoToken(clip=0.2, clip_higher=0.25),
        standardised,
        lambda row: by_hand.gspo(row, 0.2, 0.25),
    ),
    "gmpo": (Gmpo(), standardised, lambda row: by_hand.gmpo(row, 0.4)),
    "gmpo, narrow": (Gmpo(clip=0.1), standardised, lambda row: by_hand.gmpo(row, 0.1)),
    "rloo": (Rloo(), others, by_hand.reinforce),
    "rloo, clipped": (Rloo(clip=0.2), others, by_hand.decoupled),
    "reinforce_plus_plus": (
        ReinforcePlusPlus(),
        lambda rows: by_hand.standard(rows, by_hand.spread(rows, by_hand.rewards_of(rows))),
        by_hand.decoupled,
    ),
    "reinforce_plus_plus, baseline": (
        ReinforcePlusPlus(baseline="group"),
        lambda rows: by_hand.standard(rows, centered(rows)),
        by_hand.decoupled,
    ),
    "lite_ppo": (LitePpo(), lite, by_hand.decoupled),
    "lite_ppo, group": (LitePpo(std_around="group"), lambda rows: lite(rows, around="group"), by_hand.decoupled),
    "sapo": (Sapo(), standardised, lambda row: by_hand.sapo(row, 1.0, 1.05)),
    "sapo, other temperatures": (
        Sapo(temperature_positive=2.0, temperature_negative=5.0),
        standardised,
        lambda row: by_hand.sapo(row, 2.0, 5.0),
    ),
    "m2po": (M2po(), standardised, by_hand.unclipped),
    "m2po, clipped": (M2po(clip=0.3), standardised, lambda row: by_hand.plain(row, 0.3, 0.3)),
    "cispo": (Cispo(), standardised, lambda row: by_hand.cispo(row, 0.0, 5.0)),
    "cispo, narrow": (Cispo(lowest=0.8, highest=1.2), standardised, lambda row: by_hand.cispo(row, 0.8, 1.2)),
    "rae": (Rae(), above_baseline, by_hand.decoupled),
    "rae, whitened": (
        Rae(normalize_advantages=True),
        lambda rows: by_hand.standard(rows, above_baseline(rows)),
        by_hand.decoupled,
    ),
    "ppo": (Ppo(), lambda rows: by_hand.standard(rows, generalised(rows)), by_hand.decoupled),
    "ppo, discounted": (
        Ppo(discount=0.9, gae_lambda=0.8, normalize_advantages=False),
        lambda rows: generalised(rows, discount=0.9, gae_lambda=0.8),
        by_hand.decoupled,
    ),
    "ppo, bootstrapped": (
        Ppo(gae_lambda=1.0, bootstrap_truncated=True, normalize_advantages=False),
        lambda rows: generalised(rows, gae_lambda=1.0, bootstrap=True),
        by_hand.decoupled,
    ),
    "distillation": (Distillation(teacher="big"), standardised, lambda row: by_hand.distillation(row, 1.0, 0.0)),
    "distillation, with rewards": (
        Distillation(teacher="big", teacher_weight=0.3, reward_weight=0.7, estimator="k3"),
        standardised,
        lambda row: by_hand.distillation(row, 0.3, 0.7, by_hand.k3),
    ),
}
"""Algorithm, advantages of rows by hand, loss of a row by hand."""

CASES = [pytest.param(*case, id=name) for name, case in GOLDEN.items()]
SHAPES = [pytest.param({}, id="an episode per row"), pytest.param(SEVERAL, id="episodes of several rows")]
ALGORITHMS = [pytest.param(algorithm, id=name) for name, (algorithm, _, _) in GOLDEN.items()]


def test_every_algorithm_that_learns_from_rewards_is_checked_here():
    assert {type(algorithm) for algorithm, _, _ in GOLDEN.values()} == set(FROM_REWARDS.values())
    assert all(
        name.partition(",")[0] == type(algorithm).__struct_config__.tag for name, (algorithm, _, _) in GOLDEN.items()
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("algorithm", "advantages", "loss"), CASES)
def test_advantages_are_those_of_the_formula(algorithm, advantages, loss, seed, shape):
    rows = stories(seed, **shape)
    result = algorithm.advantages(step_of(rows))
    assert by_row(result.tokens, rows) == near(advantages(rows))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("algorithm", "advantages", "loss"), CASES)
def test_losses_are_those_of_the_formula_in_any_order_of_rows(algorithm, advantages, loss, seed):
    rows = stories(seed)
    rows = with_advantages(rows, advantages(rows)) if seed else rows
    order = [5, 2, 7, 0, 6, 1, 4, 3]
    batch, logp = batch_of(rows, order)
    assert by_row(algorithm.loss(batch, logp).losses, rows, order) == near([loss(row) for row in rows])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_gradient_is_the_numeric_one(algorithm):
    """Central differences; what the formula holds constant (weights, anchors) is not in the columns that are varied."""
    batch, logp = batch_of(stories(4))
    if isinstance(algorithm, Cispo):
        held = algorithm.loss(batch, logp).losses / logp
        expected = held
        losses = algorithm.loss(batch, logp.requires_grad_()).losses
        assert torch.allclose(torch.autograd.grad(losses.sum(), logp)[0], expected)
    elif isinstance(algorithm, GspoToken):
        assert_gradient_of_each_token(algorithm, batch, logp)
    else:
        assert torch.autograd.gradcheck(
            lambda now: algorithm.loss(batch, now).losses, (logp.requires_grad_(),), eps=1e-7
        )


def assert_gradient_of_each_token(algorithm, batch, logp):
    """A token that is not clipped has the gradient of its own loss, and with one advantage for all, that of GSPO."""
    losses = algorithm.loss(batch, logp.requires_grad_()).losses
    clipped = algorithm.loss(batch, logp).measures["clip_frac"]
    assert torch.allclose(torch.autograd.grad(losses.sum(), logp)[0], losses.detach().masked_fill(clipped, 0.0))
    same = msgspec.structs.replace(batch, advantages=torch.ones_like(batch.advantages))
    whole = Gspo(clip=algorithm.clip, clip_higher=algorithm.clip_higher)
    found, expected = (torch.autograd.grad(one.loss(same, logp).losses.sum(), logp)[0] for one in (algorithm, whole))
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_with_no_trained_token_and_an_empty_micro_batch_give_nothing_and_no_nan(algorithm):
    rows = stories(0, sizes=(0, 0, 0), groups=(0, 0, 1))
    result = algorithm.advantages(step_of(rows))
    assert result.tokens.tolist() == []
    assert all(math.isfinite(value) for value in result.metrics.values())
    batch, logp = batch_of(rows)
    assert algorithm.loss(batch, logp).losses.tolist() == []
    assert algorithm.shares(torch.zeros(3, dtype=torch.float64), torch.arange(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", [case for case in ALGORITHMS if not isinstance(case.values[0], Rae)])
def test_rewards_that_are_all_equal_teach_nothing(algorithm, shape):
    rows = stories(0, rewards=[0.1] * 8, **shape)
    short = [
        {"truncated": (False,) * len(row.sizes), "sampled": (0,) * len(row.sizes), "values": [0.1] * len(row.values)}
        for row in rows
    ]
    rows = [msgspec.structs.replace(row, **fields) for row, fields in zip(rows, short, strict=True)]
    tokens = algorithm.advantages(step_of(rows)).tokens
    if isinstance(algorithm, Ppo):
        assert tokens.tolist() == pytest.approx([0.0] * len(tokens), abs=1e-6 if algorithm.discount == 1 else 0.2)
    else:
        assert tokens.tolist() == [0.0] * len(tokens)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "algorithm", [case for case in ALGORITHMS if not isinstance(case.values[0], Ppo | Rae | ReinforcePlusPlus)]
)
def test_a_group_of_one_teaches_nothing_unless_all_are_normalised_together(algorithm, shape):
    rows = stories(1, **shape)
    alone = by_row(algorithm.advantages(step_of(rows)).tokens, rows)[6]
    everybody = algorithm.advantages(step_of(rows)).tokens.mean()
    assert len(set(alone)) == 1
    assert (alone[0] == 0.0) is not (isinstance(algorithm, Grpo) and algorithm.normalize_advantages)
    assert math.isfinite(everybody)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_single_tokens_are_rows_like_any_other(algorithm):
    rows = stories(2, sizes=(1, 1, 1, 1), groups=(0, 0, 1, 1), rewards=[1.0, 0.0, 0.5, 0.25])
    result = algorithm.advantages(step_of(rows))
    assert result.tokens.isfinite().all()
    losses = algorithm.loss(*batch_of(rows)).losses
    assert losses.isfinite().all()
    assert losses.shape == (4,)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_float32_in_is_float32_out(algorithm):
    step, (batch, logp) = step_of(stories(3)), batch_of(stories(3))
    names = ("behaviour", "proximal", "reference", "teacher", "values")
    step = msgspec.structs.replace(step, **{name: getattr(step, name).float() for name in names})
    batch = msgspec.structs.replace(
        batch, **{name: getattr(batch, name).float() for name in (*names, "advantages", "returns")}
    )
    assert algorithm.advantages(step).tokens.dtype == torch.float32
    result = algorithm.loss(batch, logp.float().requires_grad_())
    assert result.losses.dtype == torch.float32
    assert not any(column.requires_grad for column in result.measures.values())
    assert all(column.shape == logp.shape for column in result.measures.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_log_probability_however_far_away_makes_a_nan(algorithm):
    batch, logp = batch_of(stories(5))
    logp = (logp * torch.tensor([1.0, 300.0] * 11, dtype=torch.float64)).float().requires_grad_()
    batch = msgspec.structs.replace(
        batch,
        behaviour=(batch.behaviour * torch.tensor([300.0, 1.0] * 11, dtype=torch.float64)).float(),
        proximal=batch.proximal.float(),
    )
    losses = algorithm.loss(batch, logp).losses
    losses.sum().backward()
    assert losses.isfinite().all()
    assert logp.grad.isfinite().all()


@pytest.mark.parametrize(("tag", "kind"), EVERY.items())
def test_every_table_names_itself_and_stands_on_no_other_algorithm(tag, kind):
    assert not set(kind.__mro__[1:]) & set(EVERY.values())
    assert f'`[algorithm] name = "{tag}"`' in kind.__doc__
