"""Named rewards normalized one by one (GDPO, arXiv:2601.05242), beside a transcription of the paper in numpy."""

import msgspec
import numpy as np
import pytest
import torch
from support.samples import interaction, trajectory

from areal_actors.core.errors import UntrainableBatch
from areal_actors.core.task_settings import TaskSettings
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit, call_rewards
from areal_actors.training.algorithms import Cispo, Dapo, Grpo, LitePpo
from areal_actors.training.algorithms.separate_rewards import UNNAMED
from areal_actors.training.engine_mismatch import reported_metrics
from areal_actors.training.step_columns import ArrayColumn, step_columns
from areal_actors.training.step_data import step_tokens

WEIGHTS = {"math": 1.0, "length": 0.5, "format": 0.2}
GROUP_OF_EIGHT = {
    "math": [1, 1, 0, 0, 1, 0, 0, 0],
    "length": [1.0, 0.25, 0.5, 1.0, 0.0, 0.75, 1.0, 0.5],
    "format": [0, 1, 1, 0, 1, 0, 1, 1],
}
EASY_GROUP = {"math": [1] * 8, "length": [1.0] * 7 + [0.0], "format": [1, 0] * 4}
CREDIT = Credit.of(
    TaskSettings(reward="weighted", reward_options={name: {"weight": weight} for name, weight in WEIGHTS.items()})
)
SEPARATE = {"reward_normalization": "separate"}


def turn(identifier, text="ab", reward=None, **fields):
    return msgspec.structs.replace(interaction(identifier, text, 0, **fields), reward=reward)


def paper(groups):
    """Equations 4 to 7: of every reward in its group, their weighted sum, and that over the batch."""
    sums = []
    for group in groups:
        columns = {name: np.array(values, float) for name, values in group.items()}
        total = np.zeros(len(columns["math"]))
        for name, values in columns.items():
            deviation = values.std(ddof=1)
            if deviation > 0:
                total += WEIGHTS[name] * (values - values.mean()) / deviation
        sums.append(total)
    batch = np.concatenate(sums)
    return (batch - batch.mean()) / batch.std(ddof=1)


def episodes(group, number=0, weights=WEIGHTS):
    """Trajectories of a group, each with the weighted sum as its reward."""
    for member, values in enumerate(zip(*group.values(), strict=True)):
        named = dict(zip(group, map(float, values), strict=True))
        reward = sum(weights[name] * value for name, value in named.items())
        one = trajectory(f"{number}.{member}", turn("a", text="x" * (1 + member)), reward=reward)
        yield msgspec.structs.replace(one, metrics=named)


def rows_of(groups, credit=CREDIT):
    return [
        row
        for number, group in enumerate(groups)
        for one in episodes(group, number)
        for row in sequences_of(one, number, 0, credit)
    ]


def by_episode(tokens, advantages):
    """Advantage of each episode, whose tokens all have the same."""
    samples = tokens.samples[tokens.calls]
    columns = [advantages.tokens[samples == sample] for sample in range(len(tokens.groups))]
    assert all(len(set(column.tolist())) == 1 for column in columns)
    return [column[0].item() for column in columns]


@pytest.mark.parametrize("algorithm", [Grpo(**SEPARATE), Dapo(**SEPARATE), Cispo(**SEPARATE)])
@pytest.mark.parametrize("groups", [[GROUP_OF_EIGHT], [GROUP_OF_EIGHT, EASY_GROUP]])
def test_advantages_are_those_of_the_paper(algorithm, groups):
    tokens = step_tokens(rows_of(groups), 1)
    assert by_episode(tokens, algorithm.advantages(tokens)) == pytest.approx(paper(groups), abs=1e-5)


def test_a_reader_of_the_log_computes_them_without_torch():
    rows = rows_of([GROUP_OF_EIGHT, EASY_GROUP])
    of_trainer, algorithm = step_tokens(rows, 1), Grpo(**SEPARATE)
    of_reader = step_columns(rows, 1, ArrayColumn.of)
    ours, theirs = algorithm.advantages(of_trainer), algorithm.advantages(of_reader)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.metrics == pytest.approx(theirs.metrics)


def test_sums_of_different_rewards_have_one_advantage_and_separate_ones_do_not():
    group = {"math": [1, 0, 0, 1], "length": [0, 1, 0, 1], "format": [0, 1, 0, 0]}
    weights = {"math": 1.0, "length": 0.8, "format": 0.2}
    rows = [row for one in episodes(group, 0, weights) for row in sequences_of(one, 0, 0, CREDIT)]
    tokens = step_tokens(rows, 1)
    summed, separate = (by_episode(tokens, algorithm.advantages(tokens)) for algorithm in (Grpo(), Grpo(**SEPARATE)))
    assert summed[0] == summed[1]
    assert separate[0] != pytest.approx(separate[1])


def test_one_reward_is_normalized_as_its_sum():
    rows = rows_of([{"math": GROUP_OF_EIGHT["math"], "length": [1] * 8, "format": [0] * 8}])
    tokens = step_tokens(rows, 1)
    separate = Grpo(**SEPARATE).advantages(tokens)
    assert torch.allclose(separate.tokens, Grpo(normalize_advantages=True).advantages(tokens).tokens, atol=1e-5)
    assert separate.metrics["reward_constant/length"] == 1.0
    assert separate.metrics["reward_share/math"] == 1.0


@pytest.mark.parametrize("algorithm", [Grpo(), Grpo(**SEPARATE), LitePpo(), LitePpo(**SEPARATE)])
def test_shares_of_the_advantage_add_up(algorithm):
    metrics = algorithm.advantages(step_tokens(rows_of([GROUP_OF_EIGHT, EASY_GROUP]), 1)).metrics
    assert sum(metrics[f"reward_share/{name}"] for name in WEIGHTS) == pytest.approx(1.0)
    assert reported_metrics(metrics) == metrics
    assert [metrics[f"reward_constant/{name}"] for name in WEIGHTS] == [0.5, 0.0, 0.0]
    both = np.array(GROUP_OF_EIGHT["length"] + EASY_GROUP["length"])
    assert metrics["reward_std/length"] == pytest.approx(both.std())


def test_a_small_reward_is_hidden_by_the_sum_and_has_the_share_of_its_weight_alone():
    group = {"math": [1, 1, 0, 0, 1, 0, 0, 1], "length": [0.0] * 8, "format": [0.01, 0.0] * 4}
    tokens = step_tokens(rows_of([group]), 1)
    summed, separate = (algorithm.advantages(tokens).metrics for algorithm in (Grpo(), Grpo(**SEPARATE)))
    assert abs(summed["reward_share/format"]) < 0.001
    assert separate["reward_share/format"] > 0.03


def test_a_reward_of_a_call_that_has_no_name_is_one_more():
    with_own = [
        msgspec.structs.replace(one, interactions=(turn("b", text="y", reward=float(number % 2)), *one.interactions))
        for number, one in enumerate(episodes(GROUP_OF_EIGHT))
    ]
    tokens = step_tokens([row for one in with_own for row in sequences_of(one, 0, 0, CREDIT)], 1)
    for algorithm in (Grpo(), Grpo(**SEPARATE)):
        metrics = algorithm.advantages(tokens).metrics
        assert metrics[f"reward_share/{UNNAMED}"] > 0.0
        shares = [value for name, value in metrics.items() if name.startswith("reward_share/")]
        assert sum(shares) == pytest.approx(1.0)


def test_a_discount_carries_every_reward_to_earlier_calls():
    calls = (turn("a"), turn("b", parent="a"), turn("c", parent="b", reward=1.3))
    whole = msgspec.structs.replace(
        trajectory("0.0", *calls, reward=1.3), metrics={"math": 1.0, "length": 0.2, "format": 1.0}
    )
    credit = msgspec.structs.replace(CREDIT, discount=0.5)
    [row] = sequences_of(whole, 0, 0, credit)
    expected = call_rewards(whole, credit)
    for call, name in zip(row.calls, "abc", strict=True):
        assert sum(one.weight * one.reward for one in call.named_rewards) == pytest.approx(expected[name])
    assert [call.named_rewards[0].reward for call in row.calls] == [0.25, 0.5, 1.0]


def test_an_episode_without_one_of_the_rewards_is_refused_by_name():
    first, *others = episodes(GROUP_OF_EIGHT)
    first = msgspec.structs.replace(first, metrics={"math": 1.0, "length": 1.0})
    rows = [row for one in (first, *others) for row in sequences_of(one, 0, 0, CREDIT)]
    with pytest.raises(UntrainableBatch, match="no reward named `format`"):
        Grpo(**SEPARATE).advantages(step_tokens(rows, 1))
    assert not [name for name in Grpo().advantages(step_tokens(rows, 1)).metrics if "share" in name]


def test_an_episode_that_the_model_ended_has_0_of_each_and_its_own_reward_beside():
    first, *others = episodes(GROUP_OF_EIGHT)
    first = msgspec.structs.replace(first, metrics={}, reward=-1.0, ended_by="model")
    rows = [row for one in (first, *others) for row in sequences_of(one, 0, 0, CREDIT)]
    metrics = Grpo(**SEPARATE).advantages(step_tokens(rows, 1)).metrics
    assert metrics[f"reward_share/{UNNAMED}"] > 0.0


def test_a_step_without_named_rewards_is_refused():
    rows = rows_of([GROUP_OF_EIGHT], Credit())
    with pytest.raises(UntrainableBatch, match=r"task\.reward_weights"):
        Grpo(**SEPARATE).advantages(step_tokens(rows, 1))


def test_a_group_in_which_every_reward_is_constant_has_no_advantage():
    constant = {"math": [1] * 8, "length": [0.3] * 8, "format": [0] * 8}
    tokens = step_tokens(rows_of([GROUP_OF_EIGHT, constant, EASY_GROUP]), 1)
    advantages = by_episode(tokens, Grpo(**SEPARATE).advantages(tokens))
    assert advantages[8:16] == [0.0] * 8
    assert 0.0 not in advantages[:8]


CORRECT, POLITE = 4, 2
"""Alternatives of the two tokens of an answer, of each of which the first is the better one."""
SOLVED = 0.6
"""Share of its tasks that the best policy solves, so that groups keep differing in this reward."""


def play(algorithm, seed, steps=150, groups=4, members=8):
    """Answers of two tokens, one of which is right or wrong and one polite or not, learned from both rewards.

    Returns the final probabilities of right and of polite answers.
    """
    draw = torch.Generator().manual_seed(seed)
    logits = torch.zeros(CORRECT + POLITE, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=0.5)
    credit = Credit(reward_weights=(("right", 1.0), ("polite", 1.0)))
    for _ in range(steps):
        logps = torch.cat([part.log_softmax(0) for part in logits.split([CORRECT, POLITE])])
        rows, tokens = [], []
        for group in range(groups):
            for member in range(members):
                right, polite = (
                    torch.multinomial(part.exp(), 1, generator=draw).item()
                    for part in logps.detach().split([CORRECT, POLITE])
                )
                solved = right == 0 and torch.rand(1, generator=draw).item() < SOLVED
                named = {"right": float(solved), "polite": 0.02 * (polite == 0)}
                one = trajectory(f"{group}.{member}", turn("a", text="xy"), reward=sum(named.values()))
                rows += sequences_of(msgspec.structs.replace(one, metrics=named), group, 0, credit)
                tokens += [right, CORRECT + polite]
        step = step_tokens(rows, 0)
        loss = -(algorithm.advantages(step).tokens * logps[tokens]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right, polite = (part.softmax(0)[0].item() for part in logits.split([CORRECT, POLITE]))
    return right, polite


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_learns_the_reward_that_the_sum_hides(seed):
    summed, separate = play(Grpo(), seed), play(Grpo(**SEPARATE), seed)
    assert min(summed[0], separate[0]) > 0.95
    assert separate[1] > 0.98
    assert summed[1] < 0.9
