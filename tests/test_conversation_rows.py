"""Training sequences of a conversation's calls: rewards, branches, context."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.samples import interaction, trajectory

from areal_actors.core.values import SequenceCall
from areal_actors.sequences.build import apply_rewards, sequences_of
from areal_actors.sequences.credit import Credit


@pytest.mark.parametrize(
    ("reward", "rewards", "expected"),
    [
        (2.0, {}, [None, None, 2.0]),
        (None, {"b": 0.0}, [None, 0.0, None]),
        (2.0, {"c": 1.0, "a": 0.5}, [0.5, None, 2.0]),
        (None, {}, [None, None, None]),
    ],
)
def test_a_reward_is_that_of_the_last_completed_call_unless_calls_are_named(reward, rewards, expected):
    turns = [interaction(name, "x") for name in "abc"]
    assert [turn.reward for turn in apply_rewards(turns, reward, rewards)] == expected
    assert all(turn.reward is None for turn in turns)


def test_a_chain_is_one_row_in_the_order_in_which_it_was_sampled():
    turns = (interaction("a", "12", 0, 1, prompt="Q"), interaction("b", "3", 2, parent="a", prompt="R"))
    (row,) = sequences_of(trajectory("0.0", *turns, reward=0.25), 7, 0)
    assert "".join(map(chr, row.token_ids)) == "Q12R3"
    assert row.loss_mask.tolist() == [False, True, True, False, True]
    assert row.versions.tolist() == [-1, 0, 1, -1, 2]
    assert row.logprobs.tolist() == [0.0, -0.5, -0.625, 0.0, -0.5]
    assert (row.group, row.reward, row.truncated) == (7, 0.25, False)
    assert {column.dtype.name for column in (row.token_ids, row.loss_mask, row.logprobs, row.versions)} == {
        "int64",
        "bool",
        "float32",
        "int32",
    }


def test_where_branches_share_a_beginning_it_is_trained_in_the_first_row_only():
    turns = (
        interaction("a", "1", 0, prompt="Q"),
        interaction("b", "2", 0, parent="a", prompt="R"),
        interaction("c", "3", 0, parent="a", prompt="S"),
    )
    first, second = sequences_of(trajectory("0.0", *turns), 0, 0)
    assert first.loss_mask.tolist() == [False, True, False, True]
    assert second.loss_mask.tolist() == [False, False, False, True]
    assert second.token_ids[:2].tolist() == first.token_ids[:2].tolist()
    assert second.logprobs[1] == first.logprobs[1]


def test_every_call_brings_its_own_reward_into_the_row_that_trains_it():
    turns = (
        interaction("a", "12", 0, prompt="Q"),
        interaction("b", "3", 0, parent="a", prompt="R", finish_reason="length"),
        interaction("c", "4", 0, parent="a", prompt="S"),
        interaction("d", "5", 0, parent="c", prefix="", prompt="TUV"),
    )
    turns = [
        msgspec.structs.replace(turn, reward=reward) for turn, reward in zip(turns, (None, 1.0, None, 0.0), strict=True)
    ]
    whole = trajectory("0.1", *turns, reward=0.0)
    half = Credit(discount=0.5)
    assert [(row.episode, row.calls) for row in sequences_of(whole, 0, 0, half)] == [
        ("0.1", (SequenceCall(start=1, end=3, reward=0.25), SequenceCall(start=4, end=5, reward=1.0, truncated=True))),
        ("0.1", (SequenceCall(start=4, end=5, reward=0.0),)),
        ("0.1", (SequenceCall(start=3, end=4, reward=0.0),)),
    ]
    by_call = sequences_of(whole, 0, 0, Credit(discount=0.5, style="individual", baseline_over="calls"))
    assert [[(call.sample, call.reward) for call in row.calls] for row in by_call] == [
        [("a", 0.25)],
        [("b", 1.0)],
        [("c", 0.0)],
        [("d", 0.0)],
    ]


def test_a_call_that_is_not_trained_is_context():
    first = msgspec.structs.replace(interaction("a", "12", 0, prompt="Q"), trained=False)
    (row,) = sequences_of(trajectory("0.0", first, interaction("b", "3", 0, parent="a", prompt="R")), 0, 0)
    assert row.loss_mask.tolist() == [False, False, False, False, True]
    assert row.calls == (SequenceCall(start=4, end=5, reward=1.0),)


def test_tokens_older_than_the_bound_are_context():
    (row,) = sequences_of(trajectory("0.0", interaction("a", "1234", 0, 1, 2, 3)), 0, 2)
    assert row.loss_mask.tolist() == [False, False, False, True, True]


def test_a_row_is_truncated_when_its_last_call_was_cut_by_length():
    turns = (interaction("a", "1", finish_reason="length"), interaction("b", "2", parent="a"))
    assert [row.truncated for row in sequences_of(trajectory("0.0", *turns), 0, 0)] == [False]
    assert [row.truncated for row in sequences_of(trajectory("0.0", turns[0]), 0, 0)] == [True]


def _tree(seed, size):
    dice = random.Random(seed)
    turns = []
    for number in range(size):
        parent = dice.choice(["", *(turn.id for turn in turns)]) if turns else ""
        text = "".join(dice.choice("abcdef") for _ in range(dice.randint(1, 5)))
        versions = sorted(dice.randrange(5) for _ in text)
        turns.append(
            interaction(
                f"t{number}",
                text,
                *versions,
                parent=parent,
                prompt=dice.choice("QRS") * dice.randint(0 if parent else 1, 3),
            )
        )
    return tuple(turns)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 10), oldest=st.integers(0, 5))
def test_in_any_tree_each_fresh_token_is_trained_once_and_no_old_one_ever(seed, size, oldest):
    turns = _tree(seed, size)
    rows = sequences_of(trajectory("0.0", *turns), 0, oldest)
    leaves = {turn.id for turn in turns} - {turn.parent for turn in turns}
    assert len(rows) == len(leaves)
    fresh = sum(np.count_nonzero(turn.completion.versions_array() >= oldest) for turn in turns)
    assert sum(np.count_nonzero(row.loss_mask) for row in rows) == fresh
    for row in rows:
        assert (row.versions[row.loss_mask] >= max(oldest, 0)).all()
        assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs) == len(row.versions)
        assert not row.logprobs[row.versions == -1].any()
