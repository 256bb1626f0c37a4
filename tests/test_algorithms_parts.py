"""Components of algorithms: corrections for staleness, distances to a reference, shaping, penalties, critics,
teachers."""

import math
import random
import statistics

import msgspec
import pytest
import torch
from support import algorithm_formulas as by_hand
from support.algorithm_cases import SEVERAL, WEIGHT_VERSION, batch_of, by_row, flat, places, step_of, stories

from areal_actors.core.errors import EngineError
from areal_actors.training.algorithms import Dapo, Distillation, Grpo, Gspo, M2po, ReinforcePlusPlus, Sapo
from areal_actors.training.algorithms.correction import Correction, SequenceCorrection
from areal_actors.training.algorithms.dapo import Overlong
from areal_actors.training.algorithms.kl import Kl, RewardKl
from areal_actors.training.algorithms.m2po import within_second_moment
from areal_actors.training.algorithms.pieces import estimate
from areal_actors.training.algorithms.shaping import Shaping


def near(values):
    return pytest.approx(values, rel=1e-10, abs=1e-10)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def corrected(correction, rows):
    batch, logp = batch_of(rows)
    return correction.correct(batch, logp)


def raw_weights(row):
    return [math.exp(proximal - behaviour) for proximal, behaviour in zip(row.proximal, row.behaviour, strict=True)]


# ---------------------------------------------------------------- correction


def test_a_weight_above_the_cap_is_the_cap_and_the_share_is_reported():
    rows = stories(1)
    weights = [weight for row in rows for weight in raw_weights(row)]
    result = corrected(Correction(highest=1.5, lowest=0.7), rows)
    assert result.weight.tolist() == near([by_hand.bounded(weight, 0.7, 1.5) for weight in weights])
    assert result.measures["weight_truncated_frac"].tolist() == [not 0.7 <= weight <= 1.5 for weight in weights]
    assert 0 < sum(result.measures["weight_truncated_frac"]) < len(weights)


def test_a_masked_weight_is_zero_beyond_the_bounds_and_the_divisor_stays():
    rows = stories(1)
    weights = [weight for row in rows for weight in raw_weights(row)]
    result = corrected(Correction(importance_sampling="mask", highest=1.5, lowest=0.7), rows)
    assert result.weight.tolist() == near([weight if 0.7 <= weight <= 1.5 else 0.0 for weight in weights])
    assert result.measures["weight_masked_frac"].tolist() == [not 0.7 <= weight <= 1.5 for weight in weights]
    assert Grpo(correction=Correction(importance_sampling="mask")).advantages(step_of(rows)).kept is None


@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_at_sequence_level_the_weight_is_the_geometric_mean_of_the_rows(kind):
    rows = stories(1)
    result = corrected(Correction(level="sequence", importance_sampling=kind, highest=1.1), rows)
    for row, weights in zip(rows, by_row(result.weight, rows), strict=True):
        if weights:
            mean = math.exp(statistics.mean(math.log(weight) for weight in raw_weights(row)))
            assert weights == near([mean if mean <= 1.1 else (1.1 if kind == "truncate" else 0.0)] * len(weights))


def test_weights_can_be_unbounded_and_can_be_switched_off():
    rows = stories(1)
    assert corrected(Correction(highest=0), rows).weight.tolist() == near(
        [weight for row in rows for weight in raw_weights(row)]
    )
    off = corrected(Correction(importance_sampling="off"), rows)
    assert off.weight is None
    assert off.anchor.tolist() == flat(rows, "proximal").tolist()


def test_the_weight_carries_no_gradient():
    batch, logp = batch_of(stories(1))
    for correction in (Correction(), Correction(proximal="loglinear"), SequenceCorrection(proximal="loglinear")):
        result = correction.correct(batch, logp.requires_grad_())
        assert not result.weight.requires_grad
        assert not result.anchor.requires_grad


def test_the_loglinear_proximal_policy_lies_between_behaviour_and_current_by_version():
    """α = (v - b) / (v + 1 - b) for proximal weights of version v, sampled by version b, on the way to version v +
    1."""
    rows = stories(1)
    result = corrected(Correction(proximal="loglinear"), rows)
    expected = []
    for row in rows:
        for now, behaviour, version in zip(row.logp, row.behaviour, row.versions, strict=True):
            share = (WEIGHT_VERSION - version) / (WEIGHT_VERSION + 1 - version)
            expected.append(behaviour + share * (now - behaviour))
    assert result.anchor.tolist() == near(expected)
    assert {WEIGHT_VERSION, WEIGHT_VERSION - 3} <= {version for row in rows for version in row.versions}


def test_a_token_without_a_version_is_its_own_proximal_policy():
    rows = [msgspec.structs.replace(row, versions=[-1] * len(row.versions)) for row in stories(1)]
    assert corrected(Correction(proximal="loglinear"), rows).anchor.tolist() == flat(rows, "behaviour").tolist()


def test_only_a_recomputed_proximal_policy_costs_a_forward_pass():
    assert Grpo().recomputes_proximal
    assert not Grpo(correction=Correction(proximal="loglinear")).recomputes_proximal
    assert not Grpo(correction=Correction(decoupled=False)).recomputes_proximal
    assert not Sapo().recomputes_proximal


def test_dual_clip_bounds_the_loss_of_punished_tokens_before_the_weight():
    rows = stories(2)
    result = Grpo(dual_clip=1.05).loss(*batch_of(rows))
    expected = []
    for row in rows:
        for now, proximal, weight, advantage in zip(
            row.logp, row.proximal, raw_weights(row), row.advantages, strict=True
        ):
            loss = by_hand.clipped(math.exp(now - proximal), advantage, 0.2, 0.2)
            expected.append(min(weight, 5.0) * (min(loss, 1.05 * abs(advantage)) if advantage < 0 else loss))
    assert result.losses.tolist() == near(expected)
    assert 0 < result.measures["dual_clip_frac"].sum() < len(expected)


def test_in_gspo_a_sequence_has_one_loss_and_sequences_weigh_equally():
    rows = stories(2)
    batch, logp = batch_of(rows)
    batch = msgspec.structs.replace(batch, advantages=places(rows).double())
    losses = by_row(Gspo().loss(batch, logp).losses, rows)
    assert all(len(set(column)) <= 1 for column in losses)
    sizes = torch.tensor([len(row.behaviour) for row in rows], dtype=torch.float64)
    counted = (Gspo().shares(sizes, torch.arange(8)) * sizes).tolist()
    assert counted == near([1 / 7 if row.behaviour else 0.0 for row in rows])


# ---------------------------------------------------------------- distance to a reference

ESTIMATORS = {"k1": by_hand.k1, "k2": by_hand.k2, "k3": by_hand.k3}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_are_schulmans(name):
    differences = [-2.5, -0.1, 0.0, 0.7, 3.0]
    assert estimate(name, doubles(*differences)).tolist() == near([ESTIMATORS[name](value) for value in differences])


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_the_mean_of_k1_and_of_k3_is_the_divergence(name):
    torch.manual_seed(0)
    current, reference = torch.randn(2, 9, dtype=torch.float64).log_softmax(-1)
    divergence = (current.exp() * (current - reference)).sum()
    assert float((current.exp() * estimate(name, current - reference)).sum()) == near(float(divergence))


def test_the_mean_gradient_of_k2_as_a_loss_is_that_of_the_divergence_and_that_of_k1_has_no_reference():
    torch.manual_seed(0)
    logits = torch.randn(9, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(9, dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (truth,) = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits, retain_graph=True)
    means = {}
    for name in ("k1", "k2"):
        (means[name],) = torch.autograd.grad(
            (logp.detach().exp() * estimate(name, logp - reference)).sum(), logits, retain_graph=True
        )
    assert torch.allclose(means["k2"], truth, atol=1e-12)
    assert torch.allclose(means["k1"], torch.zeros(9, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_as_a_term_of_the_loss_the_distance_is_added_with_its_coefficient_and_its_gradient(name):
    rows = stories(3)
    batch, logp = batch_of(rows)
    algorithm = Grpo(kl=Kl(coefficient=0.3, estimator=name))
    expected = [
        loss + 0.3 * ESTIMATORS[name](now - then)
        for row in rows
        for loss, now, then in zip(by_hand.decoupled(row), row.logp, row.reference, strict=True)
    ]
    assert algorithm.loss(batch, logp).losses.tolist() == near(expected)
    assert torch.autograd.gradcheck(lambda now: algorithm.loss(batch, now).losses, (logp.requires_grad_(),), eps=1e-7)
    assert algorithm.advantages(step_of(rows)).tokens.tolist() == Grpo().advantages(step_of(rows)).tokens.tolist()


@pytest.mark.parametrize("shape", [{}, SEVERAL])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_in_the_reward_of_a_group_the_distance_is_charged_to_the_episode_before_it_is_compared(name, shape):
    rows = stories(3, **shape)
    algorithm = Grpo(kl=Kl(coefficient=0.05, apply_to="reward", estimator=name))
    charges = [
        [
            0.05 * by_hand.bounded(ESTIMATORS[name](then - base), -10, 10)
            for then, base in zip(row.behaviour, row.reference, strict=True)
        ]
        for row in rows
    ]
    charged = by_hand.charged(rows, charges)
    result = algorithm.advantages(step_of(rows))
    expected = by_hand.spread(rows, by_hand.group_standard(rows, charged))
    assert by_row(result.tokens, rows) == [near(column) for column in expected]
    assert algorithm.loss(*batch_of(rows)).losses.tolist() == Grpo().loss(*batch_of(rows)).losses.tolist()
    assert result.metrics["reference_kl"] > 0


@pytest.mark.parametrize("shape", [{}, SEVERAL])
def test_in_reinforce_plus_plus_a_token_pays_for_itself_and_those_after_it_in_its_row(shape):
    rows = stories(3, **shape)
    algorithm = ReinforcePlusPlus(kl=RewardKl(coefficient=0.1))
    expected = by_hand.standard(
        rows,
        [
            by_hand.to_come(
                by_hand.token_rewards(
                    row, [0.1 * (then - base) for then, base in zip(row.behaviour, row.reference, strict=True)]
                )
            )
            for row in rows
        ],
    )
    assert by_row(algorithm.advantages(step_of(rows)).tokens, rows) == [near(column) for column in expected]


def test_what_a_token_is_charged_is_held_within_ten_nats():
    row = msgspec.structs.replace(
        stories(3, sizes=(3,), groups=(0,))[0], behaviour=[-1.0, -50.0, -2.0], reference=[-30.0, -1.0, -3.0]
    )
    assert Kl(coefficient=0.5, apply_to="reward", estimator="k1").kl_penalties(step_of([row])).tolist() == near(
        [5.0, -5.0, 0.5]
    )


def test_off_there_is_no_reference_model():
    assert Grpo().needs == frozenset()
    assert Grpo(kl=Kl(coefficient=0.1)).needs == {"reference"}
    assert Grpo(kl=Kl(coefficient=0.1, reference="elsewhere")).models == {"reference": "elsewhere"}
    assert M2po(kl=Kl(coefficient=0.1)).needs == {"reference", "proximal"}


def test_a_column_that_is_missing_is_named():
    batch, logp = batch_of(stories(3))
    with pytest.raises(EngineError, match="did not compute the column `reference`"):
        Grpo(kl=Kl(coefficient=0.1)).loss(msgspec.structs.replace(batch, reference=None), logp)


# ---------------------------------------------------------------- shaping and penalties


def test_shaping_is_bias_then_scale_then_clip():
    assert Shaping(bias=-0.5, scale=10.0, clip=4.0).apply(doubles(0.0, 0.6, 0.5, 1.0)).tolist() == near(
        [-4.0, 1.0, 0.0, 4.0]
    )
    assert Shaping().apply(doubles(-300.0)).tolist() == [-300.0]


def test_shaping_comes_before_rewards_are_compared():
    rows = stories(4, rewards=[0.0, 9.0, 0.0, 1.0, 2.0, 5.0, 1.0, 0.0])
    clipped = [msgspec.structs.replace(row, rewards=(min(row.rewards[0], 1.0),)) for row in rows]
    ours = Grpo(shaping=Shaping(clip=1.0)).advantages(step_of(rows)).tokens
    assert ours.tolist() == Grpo().advantages(step_of(clipped)).tokens.tolist()


def test_the_overlong_penalty_begins_at_the_buffer_grows_to_one_and_stays_there():
    rows = stories(0, sizes=(1,) * 6, groups=(0,) * 6)
    lengths = [5, 6, 8, 10, 11, 500]
    rows = [
        msgspec.structs.replace(row, sampled=(length,), truncated=(False,))
        for row, length in zip(rows, lengths, strict=True)
    ]
    assert Overlong(longest=10, buffer=4, factor=2.0).penalties(step_of(rows)).tolist() == near(
        [0.0, 0.0, 1.0, 2.0, 2.0, 2.0]
    )


def test_an_answer_is_overlong_when_the_engine_cut_it_and_not_because_it_is_the_longest():
    rows = stories(0, sizes=(1, 9), groups=(0, 0))
    rows = [
        msgspec.structs.replace(rows[0], truncated=(True,), sampled=(1,)),
        msgspec.structs.replace(rows[1], truncated=(False,), sampled=(9,)),
    ]
    result = Dapo(overlong=Overlong(longest=100, buffer=10)).advantages(step_of(rows))
    assert Overlong(longest=100, buffer=10).penalties(step_of(rows)).tolist() == [1.0, 0.0]
    assert result.metrics["overlong_penalty_mean"] == 0.5


# ---------------------------------------------------------------- second moment


@pytest.mark.parametrize("threshold", [1e-9, 0.02, 0.04, 0.5, 1e9])
def test_the_largest_differences_are_left_out_until_the_mean_of_the_others_is_below_the_threshold(threshold):
    rng = random.Random(3)
    squares = [rng.gauss(0, 0.5) ** 2 for _ in range(40)]
    assert within_second_moment(doubles(*squares), threshold).tolist() == by_hand.second_moment_kept(squares, threshold)


def test_the_mask_is_over_the_whole_step_and_keeps_one_token_at_least():
    rows = stories(6)
    algorithm = M2po(threshold=0.04)
    squares = [
        (proximal - behaviour) ** 2
        for row in rows
        for proximal, behaviour in zip(row.proximal, row.behaviour, strict=True)
    ]
    result = algorithm.advantages(step_of(rows))
    assert result.kept.tolist() == by_hand.second_moment_kept(squares, 0.04)
    assert 0 < result.metrics["second_moment_masked_frac"] < 1
    assert result.metrics["second_moment_kept"] < 0.04 < result.metrics["second_moment"]
    assert M2po(threshold=1e-12).advantages(step_of(rows)).kept.sum() == 1


def test_equal_differences_at_the_threshold_are_not_below_it():
    assert within_second_moment(doubles(0.04, 0.04), 0.04).sum() == 1
    assert within_second_moment(doubles(0.0, 0.0, 0.0), 0.04).tolist() == [True, True, True]


# ---------------------------------------------------------------- critics


# ---------------------------------------------------------------- teachers


@pytest.mark.parametrize("reward_weight", [0.0, 1.0])
@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_gradient_of_distillation_contains_the_teacher(reward_weight, estimator):
    batch, logp = batch_of(stories(9))
    algorithm = Distillation(teacher="big", reward_weight=reward_weight, estimator=estimator)
    gradients = []
    for shift in (0.0, 0.5):
        seen = msgspec.structs.replace(batch, teacher=batch.teacher + shift)
        gradients.append(torch.autograd.grad(algorithm.loss(seen, logp.requires_grad_()).losses.sum(), logp)[0])
    assert (gradients[0] - gradients[1]).abs().min() > 1e-3


def test_distillation_alone_moves_the_student_to_the_teacher():
    """Sampling from the student itself, the mean gradient is that of KL(student ‖ teacher)."""
    torch.manual_seed(1)
    logits = torch.randn(7, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(7, dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (truth,) = torch.autograd.grad((logp.exp() * (logp - teacher)).sum(), logits, retain_graph=True)
    batch, _ = batch_of(stories(9, sizes=(7,), groups=(0,)))
    batch = msgspec.structs.replace(batch, behaviour=logp.detach(), proximal=logp.detach(), teacher=teacher)
    losses = Distillation(teacher="big").loss(batch, logp).losses
    (ours,) = torch.autograd.grad((logp.detach().exp() * losses).sum(), logits)
    assert torch.allclose(ours, truth, atol=1e-12)
