"""The pieces of advantages and losses: groups, ratios, surrogates, reductions; and the recipe tables of all
algorithms."""

import itertools
import math
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from support.algorithm_cases import EVERY, batch_of, step_of, stories

from areal_actors.training.algorithms import AnyAlgorithm, Grpo
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.groups import (
    batch_normalized,
    exact_mean_by,
    group_centered,
    group_normalized,
    has_signal,
    leave_one_out,
    mean_by,
    sample_values,
    std_of,
    sum_by,
    whiten,
)
from areal_actors.training.algorithms.pieces import call_shares, clipped_surrogate, estimate, ratio

ROOT = Path(__file__).parent.parent


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def integers(*values):
    return torch.tensor(values, dtype=torch.int64)


def near(values):
    return pytest.approx(values, rel=1e-12, abs=1e-12)


# ---------------------------------------------------------------- groups


def alone(groups):
    """Every reward an episode of its own."""
    return torch.arange(len(groups)), groups


def test_a_group_is_normalised_by_its_own_mean_and_standard_deviation():
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0]
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    expected = [(reward - mean) / (std + 1e-6) for reward in rewards]
    assert group_normalized(doubles(*rewards), *alone(integers(0, 0, 0, 0, 0))).tolist() == near(expected)


def test_ragged_and_interleaved_groups_are_normalised_over_the_members_they_have():
    rewards = doubles(1, 5, 0, 7, 3, 9, 2)
    groups = integers(0, 2, 0, 2, 1, 2, 0)
    advantages = group_normalized(rewards, *alone(groups))
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
    advantages = group_normalized(rewards, *alone(groups))
    assert advantages[:members].tolist() == [0.0] * members
    assert has_signal(rewards, groups).tolist() == [False] * members + [True, True]


def test_without_scaling_the_advantage_is_the_distance_from_the_mean():
    rewards, groups = doubles(1, 0, 0, 0, 8, 4), integers(0, 0, 0, 0, 1, 1)
    assert group_centered(rewards, *alone(groups)).tolist() == near([0.75, -0.25, -0.25, -0.25, 2, -2])


def test_leave_one_out_is_the_distance_from_the_mean_of_the_others_and_undefined_alone():
    assert leave_one_out(doubles(3, 0, 9, 5), *alone(integers(0, 0, 0, 1))).tolist() == near([-1.5, -6.0, 7.5, 0.0])


def test_a_batch_of_any_size_is_normalised_as_a_group_is_and_a_tail_of_it_like_the_rest():
    """Not divisible by the group's size, the last rows are a smaller group and not rows over a tiny number."""
    advantages = group_normalized(doubles(1, 0, 0, 1, 1, 0, 1), *alone(integers(0, 0, 0, 1, 1, 1, 2)))
    assert advantages.abs().max() < 2
    assert advantages[-1] == 0


def test_whitened_values_have_mean_0_and_standard_deviation_1():
    values = whiten(doubles(3, 1, 4, 1, 5), torch.arange(5))
    assert float(values.mean()) == near(0.0)
    assert float(std_of(values)) == pytest.approx(1.0, abs=1e-5)
    assert whiten(doubles(0.1, 0.1, 0.1), integers(0, 1, 1)).tolist() == [0, 0, 0]
    assert whiten(doubles(7), integers(0)).tolist() == [0]


def test_the_moments_of_whitening_are_over_episodes_however_many_tokens_each_has():
    few = whiten(doubles(1, 0, 0), integers(0, 1, 2))
    many = whiten(doubles(1, 0, *[0] * 30), integers(0, 1, *[2] * 30))
    assert many[:3].tolist() == near(few.tolist())
    ragged = whiten(doubles(1, 3, 5), integers(0, 0, 1))
    assert float(ragged[:2].mean() + ragged[2]) == near(0.0)


def test_a_group_counts_each_episode_once_however_many_calls_it_has():
    samples, groups = integers(0, 1, 1, 1, 2), integers(0, 0, 0)
    rewards = doubles(1, 0, 0, 0, 0)
    assert group_centered(rewards, samples, groups).tolist() == near([2 / 3, -1 / 3, -1 / 3, -1 / 3, -1 / 3])
    assert leave_one_out(rewards, samples, groups).tolist() == near([1.0, -0.5, -0.5, -0.5, -0.5])
    assert group_normalized(rewards, samples, groups)[0] == pytest.approx(2 / math.sqrt(3), rel=1e-5)


def test_calls_of_one_episode_are_compared_by_their_own_reward_with_the_values_of_episodes():
    samples, groups = integers(0, 0, 1), integers(0, 0)
    rewards = doubles(1.0, 0.5, 0.25)
    assert sample_values(rewards, samples, groups).tolist() == [0.75, 0.25]
    assert group_centered(rewards, samples, groups).tolist() == near([0.5, 0.0, -0.25])
    assert leave_one_out(rewards, samples, groups).tolist() == near([0.75, 0.25, -0.5])


def test_episodes_of_equal_value_whose_calls_differ_have_a_baseline_but_no_unit():
    samples, groups = integers(0, 0, 1), integers(0, 0)
    rewards = doubles(1.0, 0.0, 0.5)
    assert group_centered(rewards, samples, groups).tolist() == [0.5, -0.5, 0.0]
    assert group_normalized(rewards, samples, groups).tolist() == [0, 0, 0]
    assert batch_normalized(rewards, samples, groups, around_group=False).tolist() == [0, 0, 0]
    assert (
        batch_normalized(doubles(1.0, 0.0, 0.5, 3), integers(0, 0, 1, 2), integers(0, 0, 1), around_group=True).tolist()
        == [0] * 4
    )


@pytest.mark.parametrize("reward", [0.1, 1 / 3, -3.7e9])
def test_the_mean_of_equal_values_is_that_value_and_no_order_changes_a_mean(reward):
    assert exact_mean_by(doubles(*[reward] * 7), integers(*[0] * 7)).tolist() == [reward]
    values = [0.1, 0.7, 1 / 3, 1e-9, -2.3, 0.2]
    means = {exact_mean_by(doubles(*order), integers(*[0] * 6)).item() for order in itertools.permutations(values)}
    assert len(means) == 1
    assert means.pop() == near(statistics.mean(values))


def test_rewards_far_from_zero_lose_no_precision():
    close = group_normalized(doubles(1e6, 1e6 + 1), *alone(integers(0, 0)))
    assert close.tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-5)


def test_sums_and_means_of_an_unused_index_are_zero():
    assert sum_by(doubles(1, 2, 3), integers(0, 2, 2)).tolist() == [1, 0, 5]
    assert mean_by(doubles(1, 2, 3), integers(0, 2, 2)).tolist() == [1, 0, 2.5]


# ---------------------------------------------------------------- losses


def test_the_share_of_clipped_tokens_is_reported():
    rows = stories(0)
    batch, logp = batch_of(rows)
    result = Grpo(clip=0.1).loss(batch, logp)
    clipped = [
        (math.exp(now - then) > 1.1 and advantage > 0) or (math.exp(now - then) < 0.9 and advantage < 0)
        for row in rows
        for now, then, advantage in zip(row.logp, row.proximal, row.advantages, strict=True)
    ]
    assert result.measures["clip_frac"].tolist() == clipped
    assert 0 < sum(clipped) < len(clipped)


def test_a_stale_token_is_corrected_to_be_unbiased():
    """Expectation under the behaviour policy of weight times gradient equals the gradient under the current policy."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    behaviour = (logits.detach() + 0.5 * torch.randn(6, dtype=torch.float64)).log_softmax(0)
    rewards = torch.randn(6, dtype=torch.float64)
    logp = logits.log_softmax(0)
    (truth,) = torch.autograd.grad(-(logp.exp() * rewards).sum(), logits, retain_graph=True)
    batch, _ = batch_of(stories(0, sizes=(6,), groups=(0,)))
    batch = msgspec.structs.replace(batch, advantages=rewards, behaviour=behaviour, proximal=logp.detach())
    losses = Grpo(correction=Correction(highest=0)).loss(batch, logp).losses
    (ours,) = torch.autograd.grad((behaviour.exp() * losses).sum(), logits)
    assert torch.allclose(ours, truth, atol=1e-12)


def test_on_the_clip_boundary_at_ratio_one_the_gradient_is_the_policy_gradient():
    batch, logp = batch_of(stories(0))
    logp.requires_grad_()
    batch = msgspec.structs.replace(batch, behaviour=logp.detach(), proximal=logp.detach())
    Grpo().loss(batch, logp).losses.sum().backward()
    assert logp.grad.tolist() == near((-batch.advantages).tolist())


def test_dual_clip_bounds_only_tokens_with_negative_advantage():
    losses, measures = clipped_surrogate(doubles(9.0, 9.0, 0.5), doubles(-1.0, 2.0, -1.0), math.inf, dual_clip=3.0)
    assert losses.tolist() == [3.0, -18.0, 0.5]
    assert measures["dual_clip_frac"].tolist() == [True, False, False]


def test_tokens_are_clipped_where_the_clipped_term_is_the_larger_loss():
    _, measures = clipped_surrogate(doubles(1.3, 1.3, 0.7, 0.7), doubles(1, -1, 1, -1), 0.2)
    assert measures["clip_frac"].tolist() == [True, False, False, True]


def test_divergence_is_zero_for_equal_policies_positive_else_and_finite_for_any():
    reference, logp = doubles(-1.0, -2.0, -1e4), doubles(-1.0, -1.0, 0.0)
    assert estimate("k3", reference - logp).tolist() == near([0.0, math.e - 2, math.exp(20) - 21])


def test_ratios_beyond_all_reason_stay_finite():
    assert ratio(doubles(0.0, -1000.0), doubles(-1000.0, 0.0)).tolist() == near([math.exp(20), math.exp(-20)])


# ---------------------------------------------------------------- reductions


def reduced(loss_aggregation, losses, samples, length=1):
    """Sum of every token's loss with its share; `losses` holds each call's token losses."""
    shares = call_shares(loss_aggregation, doubles(*map(len, losses)), integers(*samples), length).tolist()
    return sum(share * sum(call) for share, call in zip(shares, losses, strict=True))


CALLS = [[1.0, 2.0, 3.0], [10.0], [], [4.0, 6.0]]
CUT = [[1.0, 2.0], [10.0], [], [6.0], [], [4.0], [3.0]], [0, 1, 2, 3, 0, 3, 0]
"""The same episodes, cut into more calls."""


@pytest.mark.parametrize(
    ("loss_aggregation", "expected"),
    [("token_mean", 26 / 6), ("seq_mean", (2 + 10 + 5) / 3), ("constant", (6 / 8 + 10 / 8 + 10 / 8) / 4)],
)
def test_reductions_are_the_means_over_tokens_or_episodes_and_only_a_constant_counts_empty_ones(
    loss_aggregation, expected
):
    assert reduced(loss_aggregation, CALLS, range(4), length=8) == near(expected)
    assert reduced(loss_aggregation, *CUT, length=8) == near(expected)


@pytest.mark.parametrize("loss_aggregation", ["token_mean", "seq_mean", "constant"])
def test_nothing_trained_is_a_loss_of_zero_and_not_a_nan(loss_aggregation):
    assert call_shares(loss_aggregation, doubles(0, 0), integers(0, 1), 8).tolist() == [0, 0]


# ---------------------------------------------------------------- recipes

REQUIRED = {"distillation": {"teacher": "big"}}


@pytest.mark.parametrize("tag", EVERY)
def test_a_recipe_table_decodes_into_the_algorithm_itself_and_back(tag):
    algorithm = msgspec.convert({"name": tag} | REQUIRED.get(tag, {}), AnyAlgorithm)
    assert type(algorithm) is EVERY[tag]
    assert list(algorithm.problems()) == []
    for there_and_back in (msgspec.to_builtins(algorithm), msgspec.json.decode(msgspec.json.encode(algorithm))):
        assert there_and_back["name"] == tag
        assert msgspec.convert(there_and_back, AnyAlgorithm) == algorithm


@pytest.mark.parametrize("tag", EVERY)
def test_what_an_algorithm_needs_it_names(tag):
    """A column that it does not name may be missing; one that it names has the model that it comes from."""
    algorithm = msgspec.convert({"name": tag} | REQUIRED.get(tag, {}), AnyAlgorithm)
    assert algorithm.needs & {"reference", "teacher"} == algorithm.models.keys()
    assert ("values" in algorithm.needs) == (algorithm.critic is not None)
    if algorithm.learns_from == "examples":
        return
    step, (batch, logp) = step_of(stories(0)), batch_of(stories(0))
    unnamed = {"reference", "teacher", "values", "last_values", "proximal"} - algorithm.needs
    step = msgspec.structs.replace(step, **dict.fromkeys(unnamed))
    batch = msgspec.structs.replace(batch, **dict.fromkeys(unnamed - {"proximal", "last_values"}))
    if not algorithm.recomputes_proximal:
        batch = msgspec.structs.replace(batch, proximal=batch.proximal * math.nan)
    assert algorithm.advantages(step).tokens.isfinite().all()
    assert algorithm.loss(batch, logp).losses.isfinite().all()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "grpo", "clipp": 0.3}, "unknown field `clipp`"),
        ({"name": "gprpo"}, "gprpo"),
        ({"name": "grpo", "group_size": 0}, ">= 1"),
        ({"name": "grpo", "loss_aggregation": "tokens"}, "tokens"),
        ({"name": "grpo", "dual_clip": 1.0}, "> 1.0"),
        ({"name": "grpo", "kl": {"estimator": "k4"}}, "k4"),
        ({"name": "distillation"}, "missing required field `teacher`"),
        ({"name": "gspo", "correction": {"level": "token"}}, "token.*correction.level"),
        ({"name": "sapo", "correction": {"decoupled": True}}, "unknown field `decoupled`"),
        ({"name": "cispo", "correction": {"decoupled": True}}, "unknown field `decoupled`"),
        ({"name": "m2po", "correction": {"decoupled": True}}, "unknown field `decoupled`"),
        ({"name": "distillation", "teacher": "big", "estimator": "k1"}, "k1"),
    ],
)
def test_a_wrong_recipe_table_is_refused_with_the_reason(table, words):
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(table, AnyAlgorithm)


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ({"name": "grpo", "group_size": 1}, ("group_size",), "at least 2"),
        ({"name": "reinforce_plus_plus", "group_size": 1, "baseline": "group"}, ("group_size",), "at least 2"),
        (
            {"name": "grpo", "kl": {"coefficient": 0.1, "estimator": "k1"}},
            ("kl", "estimator"),
            "does not depend on the reference",
        ),
        (
            {"name": "ppo", "kl": {"coefficient": 0.1, "apply_to": "loss"}},
            ("kl", "estimator"),
            "does not depend on the reference",
        ),
        ({"name": "grpo", "kl": {"coefficient": 0.1, "reference": ""}}, ("kl", "reference"), "found none"),
        (
            {"name": "grpo", "correction": {"decoupled": False, "importance_sampling": "mask"}},
            ("correction", "importance_sampling"),
            "no behaviour weight",
        ),
        (
            {"name": "grpo", "correction": {"decoupled": False, "level": "sequence"}},
            ("correction", "level"),
            "no behaviour weight",
        ),
        (
            {"name": "grpo", "correction": {"decoupled": False, "proximal": "loglinear"}},
            ("correction", "proximal"),
            "no behaviour weight",
        ),
        ({"name": "grpo", "kl": {"importance_weighted": True}}, ("kl", "importance_weighted"), "kl.coefficient is 0"),
        (
            {"name": "ppo", "kl": {"coefficient": 0.1, "importance_weighted": True}},
            ("kl", "importance_weighted"),
            'apply_to = "reward" has no loss term',
        ),
        ({"name": "grpo", "correction": {"lowest": 6.0}}, ("correction", "lowest"), "above `highest`"),
        ({"name": "dapo", "overlong": {"longest": 10, "buffer": 20}}, ("overlong", "buffer"), "above `longest`"),
        ({"name": "distillation", "teacher": ""}, ("teacher",), "found none"),
    ],
)
def test_a_contradictory_table_is_refused_with_place_and_remedy(table, key, words):
    problems = dict(msgspec.convert(table, AnyAlgorithm).problems())
    assert list(problems) == [key]
    assert words in problems[key]


@pytest.mark.parametrize(
    "table", [{"name": "gspo", "correction": {"decoupled": False}}, {"name": "ppo", "group_size": 1}]
)
def test_what_can_be_combined_is_not_refused(table):
    assert list(msgspec.convert(table, AnyAlgorithm).problems()) == []


def test_algorithms_are_imported_without_loading_torch():
    program = (
        "import sys, areal_actors.training.algorithms, areal_actors.training.settings; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=300).returncode == 0
