from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.samples import interaction, trajectory

from areal_actors.sequences.credit import Credit, call_rewards, discounted_returns, mean, sample_rewards, sequence_ends


def tree(*calls):
    """Interactions from (id, parent, reward)."""
    return [
        msgspec.structs.replace(interaction(identifier, "x", parent=parent), reward=reward)
        for identifier, parent, reward in calls
    ]


def test_a_reward_at_the_end_of_a_chain_is_discounted_towards_its_beginning():
    chain = tree(("a", "", None), ("b", "a", None), ("c", "b", 1.0))
    assert discounted_returns(chain, 0.9) == pytest.approx({"a": 0.81, "b": 0.9, "c": 1.0}, abs=1e-15)


def test_rewards_along_a_chain_add_to_what_is_inherited():
    chain = tree(("a", "", None), ("b", "a", 1.5), ("c", "b", 2.5))
    assert discounted_returns(chain, 0.85) == {"a": 0.85 * (1.5 + 0.85 * 2.5), "b": 1.5 + 0.85 * 2.5, "c": 2.5}


def test_a_parent_inherits_the_mean_of_its_children_and_a_sibling_with_reward_0_keeps_0():
    branches = tree(("a", "", None), ("b", "a", 1.0), ("c", "a", 0.0))
    assert discounted_returns(branches, 0.5) == {"a": 0.25, "b": 1.0, "c": 0.0}
    assert discounted_returns(branches, 0.5, "sum") == {"a": 0.5, "b": 1.0, "c": 0.0}


def test_unrelated_conversations_do_not_touch_each_other():
    assert discounted_returns(tree(("a", "", None), ("b", "", 1.0), ("c", "b", 1.0)), 1.0) == {
        "a": 0.0,
        "b": 2.0,
        "c": 1.0,
    }


def test_nothing_is_changed_in_place():
    chain = tree(("a", "", 0.5), ("b", "a", 1.0))
    before = list(chain)
    assert discounted_returns(chain, 0.9) == discounted_returns(chain, 0.9)
    assert chain == before


def test_a_conversation_of_ten_thousand_calls_is_credited():
    calls = [("0", "", None), *((str(n), str(n - 1), None) for n in range(1, 9_999)), ("last", "9998", 1.0)]
    assert discounted_returns(tree(*calls), 1.0)["0"] == 1.0


def test_without_a_discount_rewards_by_id_belong_to_their_own_calls():
    whole = trajectory("0.0", *tree(("a", "", 0.25), ("b", "", 1.0)), reward=1.0)
    assert call_rewards(whole, Credit()) == {"a": 0.25, "b": 1.0}
    assert call_rewards(whole, Credit(discount=0.5)) == {"a": 0.25, "b": 1.0}


def test_rows_end_with_leaves_or_with_every_call():
    calls = tree(("a", "", None), ("b", "a", None), ("c", "a", 1.0), ("d", "", None))
    assert [turn.id for turn in sequence_ends(calls, "concat")] == ["b", "c", "d"]
    assert [turn.id for turn in sequence_ends(calls, "individual")] == ["a", "b", "c", "d"]


rewards = st.none() | st.floats(-1e6, 1e6)


@st.composite
def trees(draw):
    """Every call continues an earlier one, or none."""
    count = draw(st.integers(1, 12))
    parents = [draw(st.integers(-1, number - 1)) for number in range(count)]
    return tree(
        *((str(number), str(parent) if parent >= 0 else "", draw(rewards)) for number, parent in enumerate(parents))
    )


@given(trees(), st.sampled_from(["mean", "sum"]))
def test_without_inheritance_the_return_is_the_own_reward(calls, branch):
    assert discounted_returns(calls, 0.0, branch) == {turn.id: turn.reward or 0.0 for turn in calls}


@given(st.lists(rewards, min_size=1, max_size=12))
def test_with_discount_1_the_return_in_a_chain_is_the_sum_of_later_rewards(own):
    calls = tree(*((str(number), str(number - 1) if number else "", reward) for number, reward in enumerate(own)))
    returns = discounted_returns(calls, 1.0)
    for number in range(len(own)):
        assert returns[str(number)] == pytest.approx(sum(reward or 0.0 for reward in own[number:]), abs=1e-6)


@given(trees(), st.floats(0, 1), st.sampled_from(["mean", "sum"]), st.randoms(use_true_random=False))
def test_the_order_of_the_calls_makes_no_difference(calls, discount, branch, random):
    shuffled = list(calls)
    random.shuffle(shuffled)
    assert discounted_returns(shuffled, discount, branch) == discounted_returns(calls, discount, branch)


@given(trees(), st.floats(0, 1))
def test_with_the_mean_no_return_exceeds_the_best_path_below(calls, discount):
    best = {turn.id: abs(turn.reward or 0.0) for turn in calls}
    for turn in reversed(calls):
        if turn.parent:
            own = next(abs(other.reward or 0.0) for other in calls if other.id == turn.parent)
            best[turn.parent] = max(best[turn.parent], own + best[turn.id])
    returns = discounted_returns(calls, discount)
    assert all(abs(returns[turn.id]) <= best[turn.id] + 1e-6 for turn in calls)


# ---------------------------------------------------------------- without a discount


def test_without_a_discount_one_reward_belongs_to_every_call_of_the_episode():
    calls = tree(("a", "", None), ("b", "a", None), ("c", "a", 0.3), ("d", "", None))
    assert call_rewards(trajectory("0.0", *calls, reward=0.3), Credit()) == dict.fromkeys("abcd", 0.3)


def test_without_a_discount_a_call_without_a_reward_has_the_mean_of_those_that_continue_it():
    calls = tree(("a", "", None), ("b", "a", 1.0), ("c", "a", 0.0), ("d", "c", 0.5), ("e", "", None))
    assert call_rewards(trajectory("0.0", *calls, reward=0.5), Credit()) == {
        "a": 0.5,
        "b": 1.0,
        "c": 0.0,
        "d": 0.5,
        "e": 0.5,
    }


@given(trees(), st.floats(-10, 10), st.randoms(use_true_random=False))
def test_without_a_discount_too_the_order_makes_no_difference(calls, reward, random):
    shuffled = list(calls)
    random.shuffle(shuffled)
    assert call_rewards(trajectory("0.0", *shuffled, reward=reward), Credit()) == call_rewards(
        trajectory("0.0", *calls, reward=reward), Credit()
    )


@given(trees(), st.floats(-10, 10))
def test_without_a_discount_one_reward_is_exactly_the_value_of_the_episode(calls, reward):
    """Rounding may not make equal rewards differ: a group of them has no signal."""
    plain = [msgspec.structs.replace(call, reward=None) for call in calls[:-1]]
    whole = trajectory("0.0", *plain, msgspec.structs.replace(calls[-1], reward=reward), reward=reward)
    assert sample_rewards(whole, Credit()) == (reward,)


@given(st.floats(-1e3, 1e3), st.integers(1, 40))
def test_the_mean_of_equal_values_is_that_value(value, count):
    assert mean([value] * count) == value


# ---------------------------------------------------------------- calls that are recorded and not trained


def untrained(call):
    return msgspec.structs.replace(call, trained=False)


def test_calls_that_are_not_trained_count_in_no_statistic_and_end_no_row():
    a, b, c = tree(("a", "", None), ("b", "a", None), ("c", "b", 1.0))
    whole = trajectory("0.0", a, untrained(b), c)
    assert sample_rewards(whole, Credit(discount=0.5)) == (0.625,)
    assert sample_rewards(whole, Credit(discount=0.5, baseline_over="calls")) == (0.25, 1.0)
    assert [call.id for call in sequence_ends(whole.interactions, "concat")] == ["c"]
    assert [call.id for call in sequence_ends(whole.interactions, "individual")] == ["a", "c"]


def test_a_row_ends_before_calls_that_are_not_trained():
    a, b, c = tree(("a", "", 1.0), ("b", "a", None), ("c", "b", None))
    assert [call.id for call in sequence_ends([a, untrained(b), untrained(c)], "concat")] == ["a"]
    assert [call.id for call in sequence_ends([a, b, untrained(c)], "concat")] == ["b"]
