"""Parts of algorithms that look at whole episodes or at stale tokens: answers cut by length, charges, weighted
distances, pairs."""

import math

import msgspec
import pytest
import torch
from support import algorithm_formulas as by_hand
from support.algorithm_cases import FROM_REWARDS, SEVERAL, batch_of, by_row, step_of, stories
from test_algorithms_examples import columns, loss_of

from areal_actors.core.errors import EngineError
from areal_actors.training.algorithms import AnyAlgorithm, Dapo, Dpo, Grpo, M2po, Ppo, ReinforcePlusPlus, RewardModel
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.dapo import Overlong
from areal_actors.training.algorithms.gae import discounted_sums, token_rewards
from areal_actors.training.algorithms.groups import last_by
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.shaping import Shaping

MASK = {"shaping": {"truncated": "mask"}}


def near(values):
    return pytest.approx(values, rel=1e-10, abs=1e-10)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def cut_sequences(rows, *episodes):
    """The rows, with episodes whose very last call was cut by length: these and no others; calls before the last one
    are cut, too."""
    last = {row.episode: place for place, row in enumerate(rows)}
    return [
        msgspec.structs.replace(
            row,
            truncated=(True,) * (len(row.sizes) - 1)
            + ((row.episode in episodes) if last[row.episode] == place else True,),
        )
        for place, row in enumerate(rows)
    ]


# ---------------------------------------------------------------- answers cut by length


@pytest.mark.parametrize("tag", FROM_REWARDS)
def test_masked_episodes_are_those_whose_last_call_was_cut_and_their_rewards_count_all_the_same(tag):
    required = {"teacher": "big"} if tag == "distillation" else {}
    trained, masked = (msgspec.convert({"name": tag, **required, **more}, AnyAlgorithm) for more in ({}, MASK))
    rows = cut_sequences(stories(1, **SEVERAL), 1, 3)
    if tag == "m2po":
        trained, masked = (msgspec.structs.replace(one, threshold=1e9) for one in (trained, masked))
    result = masked.advantages(step_of(rows))
    assert result.tokens.tolist() == trained.advantages(step_of(rows)).tokens.tolist()
    expected = [row.episode not in {1, 3} for row in rows for _ in row.behaviour]
    assert result.kept.tolist() == expected
    assert result.metrics["truncated_masked_frac"] == near(1 - sum(expected) / len(expected))


def test_the_second_moment_is_that_of_tokens_that_are_trained_at_all():
    rows = cut_sequences(stories(6, **SEVERAL), 1)
    algorithm = M2po(threshold=0.04, shaping=Shaping(truncated="mask"))
    left = [row for row in rows if row.episode != 1]
    squares = [
        (proximal - behaviour) ** 2
        for row in left
        for proximal, behaviour in zip(row.proximal, row.behaviour, strict=True)
    ]
    result = algorithm.advantages(step_of(rows))
    kept = by_row(result.kept, rows)
    assert [
        value for row, column in zip(rows, kept, strict=True) if row.episode != 1 for value in column
    ] == by_hand.second_moment_kept(squares, 0.04)
    assert not any(value for row, column in zip(rows, kept, strict=True) if row.episode == 1 for value in column)


def test_the_overlong_penalty_is_that_of_the_episode_under_every_cut():
    rows = stories(0, sizes=((1, 1), (1,), (2,)), groups=(0, 0, 0), episodes=(0, 0, 1))
    shape = {"truncated": (False, False)}
    rows = [
        msgspec.structs.replace(rows[0], sampled=(5, 3), **shape),
        msgspec.structs.replace(rows[1], sampled=(1,), truncated=(False,)),
        msgspec.structs.replace(rows[2], sampled=(1,), truncated=(True,)),
    ]
    assert Overlong(longest=10, buffer=4).penalties(step_of(rows)).tolist() == near([0.75, 1.0])
    one = msgspec.structs.replace(
        rows[0], sizes=(1, 1, 0), sampled=(5, 3, 1), truncated=(False,) * 3, rewards=(0.0,) * 3
    )
    assert Overlong(longest=10, buffer=4).penalties(step_of([one, rows[2]])).tolist() == near([0.75, 1.0])
    algorithm = Dapo(overlong=Overlong(longest=10, buffer=4))
    assert algorithm.advantages(step_of(rows)).metrics["overlong_penalty_mean"] == near(0.875)


# ---------------------------------------------------------------- returns of calls


def test_the_return_of_every_token_is_the_reward_of_its_call_whichever_calls_share_its_row():
    rows = stories(3, **SEVERAL)
    step = step_of(rows)
    rewards = token_rewards(
        step.rewards, torch.zeros(len(step.sequences), dtype=torch.float64), step.calls, step.sequences
    )
    assert discounted_sums(rewards, step.sequences, 1.0).tolist() == near(step.rewards[step.calls].tolist())
    raw = Ppo(gae_lambda=1.0, normalize_advantages=False).advantages(step)
    assert raw.returns.tolist() == near(step.rewards[step.calls].tolist())
    assert (
        ReinforcePlusPlus(normalize_advantages=False).advantages(step).tokens.tolist()
        == step.rewards[step.calls].tolist()
    )


def test_the_last_call_of_an_episode_is_that_of_its_last_row():
    assert last_by(torch.tensor([0, 0, 1, 0, 2, 1])).tolist() == [3, 5, 4]


# ---------------------------------------------------------------- distances of stale tokens


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_weighted_the_mean_gradient_of_the_distance_is_that_of_the_current_policy_whatever_sampled_the_tokens(
    estimator,
):
    torch.manual_seed(2)
    logits = torch.randn(7, dtype=torch.float64, requires_grad=True)
    reference, behaviour = torch.randn(2, 7, dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (truth,) = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits, retain_graph=True)
    batch, _ = batch_of(stories(9, sizes=(7,), groups=(0,)))
    batch = msgspec.structs.replace(
        batch, behaviour=behaviour, proximal=logp.detach(), reference=reference, advantages=logp.detach() * 0
    )
    gradients = {}
    for weighted in (True, False):
        losses = (
            Grpo(kl=Kl(coefficient=1.0, estimator=estimator, importance_weighted=weighted)).loss(batch, logp).losses
        )
        (gradients[weighted],) = torch.autograd.grad((behaviour.exp() * losses).sum(), logits, retain_graph=True)
    assert torch.allclose(gradients[True], truth, atol=1e-12)
    assert (gradients[False] - truth).abs().max() > 0.01


def test_on_policy_the_weight_of_the_distance_is_one():
    batch, logp = batch_of(stories(9))
    batch = msgspec.structs.replace(batch, behaviour=logp)
    plain, weighted = (
        Grpo(kl=Kl(coefficient=0.3, importance_weighted=one)).loss(batch, logp).losses for one in (False, True)
    )
    assert weighted.tolist() == near(plain.tolist())


# ---------------------------------------------------------------- proximal log-probabilities


def test_the_loglinear_approximation_is_not_used_where_the_update_has_the_exact_values():
    batch, logp = batch_of(stories(1))
    correction = Correction(proximal="loglinear")
    approximate, exact = (
        correction.correct(msgspec.structs.replace(batch, proximal_exact=known), logp).anchor for known in (False, True)
    )
    assert exact.tolist() == batch.proximal.tolist()
    assert (approximate - exact).abs().max() > 0.1


# ---------------------------------------------------------------- pairs


@pytest.mark.parametrize("algorithm", [Dpo(), RewardModel()])
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [(0, 1.0, 1), (0, 0.0, 1), (1, 1.0, 0), (1, 0.0, 1)],
            "preference pair 1 of the batch has 0 preferred answers",
        ),
        ([(0, 1.0, 1), (0, 0.0, 1), (1, 1.0, 1), (1, 0.0, 0)], "preference pair 1 of the batch has 0 rejected answers"),
        ([(0, 1.0, 1), (0, 0.0, 1), (4, 0.0, 1)], "preference pair 4 of the batch has 0 preferred answers"),
        ([(0, 1.0, 1), (0, 1.0, 1), (0, 0.0, 1)], "preference pair 0 of the batch has 2 preferred answers"),
    ],
)
def test_a_pair_without_both_sides_is_refused_by_name(algorithm, rows, words):
    logp, reference = columns(rows)
    with pytest.raises(EngineError, match=words):
        loss_of(algorithm, rows, logp, reference)


def test_the_unit_of_a_group_is_that_of_its_episodes_and_not_of_its_calls():
    rows = stories(0, sizes=(1, (1,) * 31, 1), groups=(0, 0, 0), rewards=[1.0, 0.0, 0.0])
    advantages = Grpo().advantages(step_of(rows)).tokens
    std = math.sqrt(((2 / 3) ** 2 + 2 * (1 / 3) ** 2) / 2)
    assert advantages.tolist() == pytest.approx([2 / 3 / std, *[-1 / 3 / std] * 32], rel=1e-5)
