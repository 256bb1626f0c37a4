"""Losses of examples against values computed by hand in float64, and their gradients against numeric ones."""

import math
from statistics import fmean

import msgspec
import pytest
import torch

from areal_actors.training.algorithms import AnyAlgorithm, Batch, Dpo, RewardModel, Sft, StepTokens
from areal_actors.training.algorithms.pairs import negative_log_sigmoid

RAGGED = [(0, 1.0, 3), (0, 0.0, 1), (1, 0.0, 2), (1, 1.0, 4)]
"""(pair, reward, tokens) of each row; in the second pair the rejected row comes first."""
SINGLE = [(0, 1.0, 1), (0, 0.0, 1)]
SCORED = [(0, 1.0, 1), (0, 0.0, 1), (1, 0.0, 1), (1, 1.0, 1), (2, 1.0, 1), (2, 0.0, 1)]


def columns(rows, *, seed=0):
    """Random log-probabilities under the current weights and under the reference, row by row."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(count for *_, count in rows)
    logp, reference = -torch.rand(2, tokens, dtype=torch.float64, generator=generator) * 3
    return logp, reference


def step(rows):
    lengths = torch.tensor([count for *_, count in rows])
    tokens = int(lengths.sum())
    return StepTokens(
        sequences=torch.arange(len(rows)).repeat_interleave(lengths),
        calls=torch.arange(len(rows)).repeat_interleave(lengths),
        call_sequences=torch.arange(len(rows)),
        samples=torch.arange(len(rows)),
        groups=torch.tensor([pair for pair, *_ in rows]),
        rewards=torch.tensor([reward for _, reward, _ in rows], dtype=torch.float64),
        sampled=torch.zeros(len(rows), dtype=torch.int64),
        truncated=torch.zeros(len(rows), dtype=torch.bool),
        behaviour=torch.zeros(tokens, dtype=torch.float64),
        versions=torch.full((tokens,), -1),
        weight_version=0,
    )


def batch(algorithm, rows, reference=None):
    seen = step(rows)
    return Batch(
        sequences=seen.sequences,
        groups=seen.groups[seen.sequences],
        rewards=seen.rewards[seen.sequences].float(),
        advantages=algorithm.advantages(seen).tokens,
        behaviour=seen.behaviour,
        versions=seen.versions,
        weight_version=0,
        proximal=seen.behaviour,
        reference=reference,
    )


def loss_of(algorithm, rows, logp, reference=None):
    """The loss of a step in one micro-batch, as a trainer sums it, and its measures, as a trainer reports them."""
    seen = batch(algorithm, rows, reference)
    result = algorithm.loss(seen, logp)
    shares = algorithm.shares(
        torch.tensor([float(count) for *_, count in rows], dtype=torch.float64), torch.arange(len(rows))
    )
    return (result.losses * shares[seen.sequences]).sum(), {
        name: float(column.double().mean()) for name, column in result.measures.items()
    }


def by_row(rows, column):
    """The column's values, a list for each row."""
    values = iter(column.tolist())
    return [[next(values) for _ in range(count)] for *_, count in rows]


def pairs_of(rows, per_row):
    """(chosen, rejected) of each pair."""
    found = {}
    for (pair, reward, _), value in zip(rows, per_row, strict=True):
        found.setdefault(pair, {})[reward] = value
    return [(both[1.0], both[0.0]) for both in found.values()]


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def near(value):
    return pytest.approx(value, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("rows", [RAGGED, SINGLE], ids=["ragged", "single token"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_dpo_loss_is_the_papers_mean_over_pairs_and_so_are_its_measures(rows, smoothing):
    logp, reference = columns(rows)
    ratios = [sum(values) for values in by_row(rows, logp - reference)]
    margins = [0.3 * (chosen - rejected) for chosen, rejected in pairs_of(rows, ratios)]
    expected = fmean(-(1 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin) for margin in margins)
    loss, measures = loss_of(Dpo(beta=0.3, label_smoothing=smoothing), rows, logp, reference)
    assert float(loss) == near(expected)
    assert measures == {
        "accuracy": near(fmean(margin > 0 for margin in margins)),
        "margin": near(fmean(margins)),
        "chosen_reward": near(fmean(0.3 * chosen for chosen, _ in pairs_of(rows, ratios))),
        "rejected_reward": near(fmean(0.3 * rejected for _, rejected in pairs_of(rows, ratios))),
    }


@pytest.mark.parametrize("rows", [RAGGED, SINGLE], ids=["ragged", "single token"])
def test_the_ipo_loss_pulls_the_difference_of_token_means_to_its_target(rows):
    logp, reference = columns(rows)
    means = [fmean(values) for values in by_row(rows, logp - reference)]
    expected = fmean((chosen - rejected - 1 / (2 * 0.5)) ** 2 for chosen, rejected in pairs_of(rows, means))
    assert float(loss_of(Dpo(beta=0.5, variant="ipo"), rows, logp, reference)[0]) == near(expected)


def test_at_the_reference_every_pair_costs_log_2_and_pushes_by_half_of_beta():
    logp, _ = columns(RAGGED)
    logp.requires_grad_()
    loss, measures = loss_of(Dpo(beta=0.2), RAGGED, logp, logp.detach())
    loss.backward()
    assert float(loss.detach()) == near(math.log(2))
    assert measures["accuracy"] == near(0.5), "a tie tells nothing apart, nor does it tell it wrongly"
    signs = [1.0 if reward else -1.0 for _, reward, count in RAGGED for _ in range(count)]
    assert logp.grad.tolist() == near([-sign * 0.2 / 2 / 2 for sign in signs]), "half of beta, in a mean over two pairs"


@pytest.mark.parametrize("center", [0.0, 0.01])
def test_the_reward_models_loss_is_that_of_bradley_and_terry(center):
    scores = torch.tensor([1.5, -0.5, 0.25, 0.75, -2.0, 1.0], dtype=torch.float64)
    pairs = [(1.5, -0.5), (0.75, 0.25), (-2.0, 1.0)]
    expected = fmean(-log_sigmoid(chosen - rejected) + center * (chosen + rejected) ** 2 for chosen, rejected in pairs)
    loss, measures = loss_of(RewardModel(center_coefficient=center), SCORED, scores)
    assert float(loss) == near(expected)
    assert measures == {
        "accuracy": near(2 / 3),
        "margin": near(fmean(chosen - rejected for chosen, rejected in pairs)),
        "chosen_score": near(fmean(chosen for chosen, _ in pairs)),
        "rejected_score": near(fmean(rejected for _, rejected in pairs)),
    }


@pytest.mark.parametrize(
    ("algorithm", "rows"),
    [
        (Sft(), RAGGED),
        (Dpo(), RAGGED),
        (Dpo(), SINGLE),
        (Dpo(label_smoothing=0.2), RAGGED),
        (Dpo(variant="ipo"), RAGGED),
        (RewardModel(), SCORED),
        (RewardModel(center_coefficient=0.1), SCORED),
    ],
)
def test_the_gradient_of_the_steps_loss_is_the_numeric_one(algorithm, rows):
    logp, reference = columns(rows, seed=5)
    logp.requires_grad_()
    assert torch.autograd.gradcheck(lambda current: loss_of(algorithm, rows, current, reference)[0], (logp,), eps=1e-7)


@pytest.mark.parametrize("algorithm", [Dpo(), Dpo(variant="ipo"), RewardModel()])
def test_a_step_cut_into_micro_batches_of_whole_pairs_has_the_same_loss(algorithm):
    rows = SCORED if algorithm.head == "value" else RAGGED
    logp, reference = columns(rows)
    whole, _ = loss_of(algorithm, rows, logp, reference)
    seen = batch(algorithm, rows, reference)
    shares = algorithm.shares(
        torch.tensor([float(count) for *_, count in rows], dtype=torch.float64), torch.arange(len(rows))
    )
    parts = []
    for pair in {pair for pair, *_ in rows}:
        inside = seen.groups == pair
        names = ("sequences", "groups", "rewards", "advantages", "behaviour", "versions", "proximal", "reference")
        part = msgspec.structs.replace(seen, **{name: getattr(seen, name)[inside] for name in names})
        parts.append((algorithm.loss(part, logp[inside]).losses * shares[part.sequences]).sum())
    assert float(sum(parts)) == near(float(whole))


def test_minus_log_sigmoid_is_finite_for_any_number_and_has_its_gradient_at_0():
    x = torch.tensor([-1e4, 0.0, 1e4], dtype=torch.float64, requires_grad=True)
    values = negative_log_sigmoid(x)
    values.sum().backward()
    assert values.tolist() == near([1e4, math.log(2), 0.0])
    assert x.grad.tolist() == near([-1.0, -0.5, 0.0])


def test_all_of_them_learn_from_examples_and_declare_what_they_need():
    assert all(kind.learns_from == "examples" for kind in (Sft, Dpo, RewardModel))
    assert Dpo().needs == {"reference"}
    assert Dpo(reference="some/model").models == {"reference": "some/model"}
    assert (RewardModel().head, RewardModel.whole_groups, Dpo.whole_groups, Sft.whole_groups) == (
        "value",
        True,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"name": "sft", "group_size": 2}, "group_size"),
        ({"name": "dpo", "group_size": 3}, "group_size"),
        ({"name": "reward_model", "group_size": 1}, "group_size"),
        ({"name": "dpo", "variant": "ipo", "label_smoothing": 0.1}, "label_smoothing"),
    ],
)
def test_a_contradictory_table_is_refused_with_key_and_remedy(table, key):
    ((found, complaint),) = msgspec.convert(table, AnyAlgorithm).problems()
    assert found == (key,)
    assert complaint.endswith("leave it out")


@pytest.mark.parametrize(
    "table", [{"name": "dpo", "beta": 0}, {"name": "dpo", "label_smoothing": 0.5}, {"name": "dpo", "variant": "kto"}]
)
def test_a_wrong_table_is_refused(table):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, AnyAlgorithm)
