"""Shared beginnings: every sequence is found again in the tree, and what is shared stands once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from areal_actors.training.packing.prefix_tree import build_prefix_tree, join_trees, shared_tokens

SEQUENCES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=10)


def arrays(sequences):
    return [np.array(ids, dtype=np.int64) for ids in sequences]


def seen(tree):
    """By token, the tokens that it attends to, itself last."""
    found = {}
    for group in tree.groups:
        context = [token for first, last in group.context for token in range(first, last)]
        for first, last in group.branches:
            for token in range(first, last):
                found[token] = [*context, *range(first, token + 1)]
    return found


@given(SEQUENCES)
def test_every_sequence_is_found_again_at_its_positions(sequences):
    tree = build_prefix_tree(arrays(sequences))
    for ids, places in zip(sequences, tree.token_positions, strict=True):
        assert tree.token_ids[places].tolist() == ids
        assert tree.depths[places].tolist() == list(range(len(ids)))


@given(SEQUENCES)
def test_a_token_attends_to_exactly_what_stands_before_it_in_its_sequence(sequences):
    tree = build_prefix_tree(arrays(sequences))
    found = seen(tree)
    assert sorted(found) == list(range(len(tree.token_ids)))
    for places in tree.token_positions:
        for at, token in enumerate(places.tolist()):
            assert found[token] == places[: at + 1].tolist()


@given(SEQUENCES)
def test_what_is_saved_is_what_is_not_computed(sequences):
    tree = build_prefix_tree(arrays(sequences))
    assert len(tree.token_ids) == sum(map(len, sequences)) - shared_tokens(arrays(sequences))


@given(SEQUENCES, SEQUENCES)
def test_joined_trees_do_not_see_each_other(left, right):
    first, second = build_prefix_tree(arrays(left)), build_prefix_tree(arrays(right))
    both = join_trees([first, second])
    for ids, places in zip([*left, *right], both.token_positions, strict=True):
        assert both.token_ids[places].tolist() == ids
    moved = {
        token + len(first.token_ids): [other + len(first.token_ids) for other in others]
        for token, others in seen(second).items()
    }
    assert seen(both) == seen(first) | moved


def test_a_prompt_stands_once_and_its_completions_are_siblings():
    prompt = list(range(20))
    tree = build_prefix_tree(arrays([[*prompt, 30, 31, 32], [*prompt, 40], [*prompt, 50, 51]]))
    assert len(tree.token_ids) == 20 + 3 + 1 + 2
    trunk, siblings = tree.groups
    assert (trunk.branches, trunk.context) == (((0, 23),), ())
    assert (siblings.branches, siblings.context) == (((23, 25), (25, 26)), ((0, 20),))


def test_turns_that_contain_each_other_are_one_chain():
    ids = list(range(50))
    tree = build_prefix_tree(arrays([ids[:10], ids[:30], ids]))
    assert tree.token_ids.tolist() == ids
    assert [group.branches for group in tree.groups] == [((0, 50),)]


def test_completions_that_begin_with_the_same_few_tokens_stay_siblings():
    prompt = list(range(20))
    tree = build_prefix_tree(arrays([[*prompt, 30, 31, 32, 33], [*prompt, 30, 41, 42], [*prompt, 51, 52]]))
    assert [len(group.branches) for group in tree.groups] == [1, 2]


def test_a_prefix_of_two_tokens_is_not_shared():
    tree = build_prefix_tree(arrays([[1, 2, 3, 4, 5], [1, 2, 7, 8, 9]]))
    assert [group.context for group in tree.groups] == [()]
