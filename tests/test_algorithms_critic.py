"""Critics: discounted sums, advantages, and the loss of values."""

import msgspec
import pytest
import torch
from support import algorithm_formulas as by_hand
from support.algorithm_cases import batch_of, by_row, flat, places, step_of, stories
from test_algorithms_parts import doubles, near

from areal_actors.training.algorithms import Ppo
from areal_actors.training.algorithms.base import CriticSettings
from areal_actors.training.algorithms.gae import discounted_sums, generalized_advantages


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.9, 1.0])
def test_discounted_sums_stay_in_their_row(factor):
    rows = stories(7, sizes=(1, 17, 2, 9, 4), groups=(0,) * 5)
    expected = [
        sum(factor**ahead * value for ahead, value in enumerate(row.values[place:]))
        for row in rows
        for place in range(len(row.values))
    ]
    assert discounted_sums(flat(rows, "values"), places(rows), factor).tolist() == near(expected)


def test_with_lambda_1_the_advantage_is_what_came_less_what_was_expected():
    rows = stories(7)
    rewards = [by_hand.token_rewards(row, [0.0] * len(row.values)) for row in rows]
    column = doubles(*[reward for row in rewards for reward in row])
    ours = generalized_advantages(column, flat(rows, "values"), places(rows), 1.0, 1.0)
    assert ours.tolist() == near([row.rewards[0] - value for row in rows for value in row.values])


def test_what_a_critic_learns_is_the_advantage_before_normalisation_and_its_value():
    rows = stories(7)
    raw, whitened = (
        Ppo(normalize_advantages=normalize_advantages).advantages(step_of(rows))
        for normalize_advantages in (False, True)
    )
    assert raw.returns.tolist() == near((raw.tokens + flat(rows, "values")).tolist())
    assert whitened.returns.tolist() == raw.returns.tolist()


def test_only_what_the_engine_cut_by_length_is_bootstrapped():
    rows = stories(7)
    with_end, without = (
        Ppo(normalize_advantages=False, bootstrap_truncated=answer).advantages(step_of(rows)).tokens
        for answer in (True, False)
    )
    for row, ours, theirs in zip(rows, by_row(with_end, rows), by_row(without, rows), strict=True):
        assert (ours != theirs) == (row.truncated[-1] and len(row.values) > 0)
    assert len({row.truncated for row in rows}) == 2


@pytest.mark.parametrize("bound", [0.05, 0.5])
def test_the_critics_loss_is_the_larger_squared_error_and_its_gradient_the_numeric_one(bound):
    rows = stories(8)
    batch, values = batch_of(rows)
    algorithm = Ppo(critic=CriticSettings(clip=bound))
    result = algorithm.critic_loss(batch, values)
    assert by_row(result.losses, rows) == [near(by_hand.critic(row, bound)) for row in rows]
    assert torch.autograd.gradcheck(
        lambda now: algorithm.critic_loss(batch, now).losses, (values.requires_grad_(),), eps=1e-7
    )


def test_a_critic_without_a_bound_has_the_squared_error_and_an_empty_batch_no_nan():
    batch, values = batch_of(stories(8))
    free = Ppo(critic=CriticSettings(clip=0)).critic_loss(batch, values)
    assert free.losses.tolist() == near(((values - batch.returns) ** 2 / 2).tolist())
    assert Ppo().critic_loss(*batch_of(stories(8, sizes=(0,), groups=(0,)))).losses.tolist() == []


def test_explained_variance_is_one_for_a_critic_that_knew_and_zero_for_one_that_knows_the_mean():
    rows = [msgspec.structs.replace(row, values=[row.rewards[0]] * len(row.values)) for row in stories(8)]
    assert Ppo().advantages(step_of(rows)).metrics["explained_variance"] == near(1.0)
    rows = [msgspec.structs.replace(row, values=[0.3] * len(row.values)) for row in rows]
    assert Ppo(gae_lambda=1.0).advantages(step_of(rows)).metrics["explained_variance"] == near(0.0)
