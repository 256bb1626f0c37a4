"""Advantages and losses against values computed by hand in float64, and their gradients against numeric ones."""

import math
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from areal_actors.algorithms import AnyAlgorithm, Batch, Grpo, Sft
from areal_actors.algorithms.pieces import (
    behaviour_weight,
    divergence,
    dual_clipped,
    group_normalized,
    has_signal,
    is_clipped,
    mean_by,
    row_shares,
    sum_by,
)

ROOT = Path(__file__).parent.parent


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def integers(*values):
    return torch.tensor(values, dtype=torch.int64)


def batch(advantages, behaviour, proximal):
    count = len(advantages)
    return Batch(rows=torch.zeros(count, dtype=torch.int64), advantages=advantages, behaviour=behaviour, proximal=proximal)


def near(values):
    return pytest.approx(values, rel=1e-12, abs=1e-12)


# ---------------------------------------------------------------- advantages


def test_a_group_is_normalised_by_its_own_mean_and_standard_deviation():
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0]
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    expected = [(reward - mean) / (std + 1e-6) for reward in rewards]
    assert group_normalized(doubles(*rewards), integers(0, 0, 0, 0, 0)).tolist() == near(expected)


def test_ragged_and_interleaved_groups_are_normalised_over_the_members_they_have():
    rewards = doubles(1, 5, 0, 7, 3, 9, 2)
    groups = integers(0, 2, 0, 2, 1, 2, 0)
    advantages = group_normalized(rewards, groups)
    for group in (0, 2):
        members = rewards[groups == group].tolist()
        mean, std = statistics.mean(members), statistics.stdev(members)
        assert advantages[groups == group].tolist() == near([(member - mean) / (std + 1e-6) for member in members])
    assert advantages[4] == 0.0


@pytest.mark.parametrize("reward", [0.1, 1.0, -3.7, 1e9])
@pytest.mark.parametrize("members", [1, 2, 3, 7])
def test_a_group_without_differences_has_advantages_of_exactly_zero(reward, members):
    rewards = torch.cat([torch.full((members,), reward, dtype=torch.float64), doubles(0, 1)])
    groups = integers(*[0] * members, 1, 1)
    advantages = group_normalized(rewards, groups)
    assert advantages[:members].tolist() == [0.0] * members
    assert has_signal(rewards, groups).tolist() == [False] * members + [True, True]


def test_without_scaling_the_advantage_is_the_distance_from_the_mean():
    advantages = Grpo(scale_by_std=False).advantages(doubles(1, 0, 0, 0, 8, 4), integers(0, 0, 0, 0, 1, 1))
    assert advantages.tolist() == near([0.75, -0.25, -0.25, -0.25, 2, -2])


def test_rewards_far_from_zero_lose_no_precision():
    close = group_normalized(doubles(1e6, 1e6 + 1), integers(0, 0))
    assert close.tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-5)


def test_sums_and_means_of_an_index_nobody_has_are_zero():
    assert sum_by(doubles(1, 2, 3), integers(0, 2, 2)).tolist() == [1, 0, 5]
    assert mean_by(doubles(1, 2, 3), integers(0, 2, 2)).tolist() == [1, 0, 2.5]


# ---------------------------------------------------------------- losses


def decoupled_by_hand(logp, proximal, behaviour, advantage, below, above, cap):
    """The decoupled PPO loss of one token, in python's own doubles."""
    u, weight = math.exp(logp - proximal), math.exp(proximal - behaviour)
    surrogate = min(u * advantage, min(max(u, 1 - below), 1 + above) * advantage)
    return -min(weight, cap) * surrogate


CASES = [
    (-1.0, -1.0, -1.0, 1.0),
    (-0.5, -1.0, -1.2, 1.0),  # clipped above
    (-1.5, -1.0, -0.7, 1.0),  # far below, not clipped: the worse of the two counts
    (-0.5, -1.0, -1.1, -1.0),  # far above, not clipped
    (-1.5, -1.0, -1.3, -2.0),  # clipped below
    (-0.9, -1.0, -4.0, 0.5),  # behaviour weight beyond the cap
    (-3.0, -2.9, -2.8, 0.0),
]


def test_the_decoupled_loss_is_the_papers_formula_token_by_token():
    logp, proximal, behaviour, advantages = (doubles(*column) for column in zip(*CASES, strict=True))
    said = Grpo(clip=0.2, clip_higher=0.28, behaviour_cap=5.0).loss(batch(advantages, behaviour, proximal), logp)
    assert said.losses.tolist() == near([decoupled_by_hand(*case, below=0.2, above=0.28, cap=5.0) for case in CASES])
    assert said.measures["clip_share"].tolist() == [False, True, False, False, True, False, False]
    assert said.measures["capped_share"].tolist() == [False, False, False, False, False, True, False]
    assert said.measures["behaviour_weight_max"].max() == 5.0


def test_undecoupled_the_ratio_is_to_the_behaviour_weights_and_nothing_else_corrects():
    logp, behaviour, advantages = doubles(-1.0, -0.9, -2.0), doubles(-1.1, -1.4, -1.0), doubles(1.0, 1.0, -1.0)
    said = Grpo(decoupled=False, clip=0.2).loss(batch(advantages, behaviour, doubles(9, 9, 9)), logp)
    assert said.losses.tolist() == near([-math.exp(0.1), -1.2, 0.8])
    assert "behaviour_weight_mean" not in said.measures


def test_the_behaviour_weight_is_capped_and_carries_no_gradient():
    proximal = doubles(-1.0, -1.0, 100.0).requires_grad_()
    weight = behaviour_weight(proximal, doubles(-1.5, -9.0, -900.0), cap=5.0)
    assert weight.tolist() == near([math.exp(0.5), 5.0, 5.0])
    assert not weight.requires_grad
    assert behaviour_weight(proximal, doubles(-1.5, -9.0, 90.0), cap=None).tolist() == near([math.exp(0.5), math.exp(8), math.exp(10)])


def test_a_stale_token_is_corrected_to_be_unbiased():
    """Expectation under the behaviour policy of weight times gradient equals the gradient under the current policy."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    behaviour = (logits.detach() + 0.5 * torch.randn(6, dtype=torch.float64)).log_softmax(0)
    rewards = torch.randn(6, dtype=torch.float64)
    logp = logits.log_softmax(0)
    (truth,) = torch.autograd.grad(-(logp.exp() * rewards).sum(), logits, retain_graph=True)
    losses = Grpo(behaviour_cap=None).loss(batch(rewards, behaviour, logp.detach()), logp).losses
    (ours,) = torch.autograd.grad((behaviour.exp() * losses).sum(), logits)
    assert torch.allclose(ours, truth, atol=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [Grpo(), Grpo(decoupled=False), Grpo(clip_higher=0.28, dual_clip=3.0), Grpo(behaviour_cap=None), Sft()],
    ids=["decoupled", "plain", "dual clip", "uncapped", "sft"],
)
def test_the_gradient_is_the_numeric_one(algorithm):
    generator = torch.Generator().manual_seed(3)
    logp, behaviour, proximal, advantages = torch.randn(4, 40, dtype=torch.float64, generator=generator)
    logp = (proximal + 0.3 * logp).requires_grad_()
    seen = batch(advantages, behaviour, proximal)
    assert torch.autograd.gradcheck(lambda current: algorithm.loss(seen, current).losses, (logp,), eps=1e-7)


def test_on_the_clip_boundary_at_ratio_one_the_gradient_is_the_policy_gradient():
    logp = doubles(-1.0, -2.0).requires_grad_()
    Grpo().loss(batch(doubles(2.0, -3.0), logp.detach(), logp.detach()), logp).losses.sum().backward()
    assert logp.grad.tolist() == near([-2.0, 3.0])


def test_dual_clip_bounds_only_tokens_with_negative_advantage():
    losses = dual_clipped(doubles(9.0, 9.0, 0.5), doubles(-1.0, 2.0, -1.0), bound=3.0)
    assert losses.tolist() == [3.0, 9.0, 0.5]
    assert is_clipped(doubles(1.3, 1.3, 0.7, 0.7), doubles(1, -1, 1, -1), 0.2, 0.2).tolist() == [True, False, False, True]


def test_divergence_is_zero_for_equal_policies_positive_else_and_finite_for_any():
    assert divergence(doubles(-1.0, -1.0, 0.0), doubles(-1.0, -2.0, -1e4)).tolist() == near([0.0, math.e - 2, math.exp(20) - 21])


def test_sft_is_the_negative_log_probability():
    assert Sft().loss(batch(doubles(1, 1), doubles(0, 0), doubles(0, 0)), doubles(-0.3, -2.0)).losses.tolist() == [0.3, 2.0]
    assert Sft().advantages(doubles(5, 6), integers(0, 0)).tolist() == [0, 0]


# ---------------------------------------------------------------- reductions


def reduced(reduction, tokens, losses, length=1):
    """Sum of every token's loss with its share; `losses` holds each row's token losses."""
    shares = row_shares(reduction, doubles(*tokens), length).tolist()
    return sum(share * sum(row) for share, row in zip(shares, losses, strict=True))


ROWS = [[1.0, 2.0, 3.0], [10.0], [], [4.0, 6.0]]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("token", 26 / 6), ("sequence", (2 + 10 + 5) / 3), ("constant", (6 / 8 + 10 / 8 + 10 / 8) / 3)],
)
def test_reductions_are_the_means_they_say_and_an_empty_row_counts_for_nothing(reduction, expected):
    assert reduced(reduction, [3, 1, 0, 2], ROWS, length=8) == near(expected)


@pytest.mark.parametrize("reduction", ["token", "sequence", "constant"])
def test_nothing_trained_is_a_loss_of_zero_and_not_a_nan(reduction):
    assert row_shares(reduction, doubles(0, 0), 8).tolist() == [0, 0]


# ---------------------------------------------------------------- recipes


def test_a_recipe_table_decodes_into_the_algorithm_itself():
    algorithm = msgspec.convert({"name": "grpo", "clip": 0.3, "reduction": "sequence"}, AnyAlgorithm)
    assert algorithm == Grpo(clip=0.3, reduction="sequence")
    assert msgspec.to_builtins(algorithm)["name"] == "grpo"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "grpo", "clipp": 0.3}, "unknown field `clipp`"),
        ({"name": "gprpo"}, "gprpo"),
        ({"name": "grpo", "group_size": 0}, ">= 1"),
        ({"name": "grpo", "reduction": "tokens"}, "tokens"),
    ],
)
def test_a_wrong_recipe_table_is_refused_with_the_reason(table, words):
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(table, AnyAlgorithm)


def test_algorithms_are_imported_without_loading_torch():
    program = "import sys, areal_actors.algorithms, areal_actors.engines.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=60).returncode == 0
