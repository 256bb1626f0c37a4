from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Letters, columns, interaction, trajectory

from areal_actors.conversation import prompt_for, recorded, rewarded, rows_of

LETTERS = Letters()


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def call(turns, messages, answer, *, tokenizer=LETTERS, version=0):
    """One more completed call; its completion ends with the end of the message."""
    prompt = prompt_for(turns, messages, tokenizer)
    made = columns(answer + "\n", version)
    return recorded(f"call-{len(turns) + 1}", prompt, messages, made, "stop", assistant(answer), tokenizer), prompt


def test_a_first_call_is_a_root_whose_suffix_is_everything():
    prompt = prompt_for([], [user("hi")], LETTERS)
    assert prompt.text == "u:hi\na:"
    assert (prompt.parent, prompt.split, prompt.token_ids) == ("", "", prompt.suffix_ids)
    assert LETTERS.decode(prompt.token_ids, skip_special=False) == prompt.text


def test_a_second_call_begins_with_the_exact_tokens_of_the_first():
    first, _ = call([], [user("hi")], "yes")
    second = prompt_for([first], [user("hi"), assistant("yes"), user("why")], LETTERS)
    assert second.parent == "call-1"
    assert second.token_ids[: len(first.token_ids)] == first.token_ids
    assert second.token_ids == (*first.token_ids, *second.suffix_ids)
    assert LETTERS.decode(second.suffix_ids, skip_special=False) == "u:why\na:"


class Pairs(Letters):
    """Merges `ab` into one token when it tokenises, as its own output never does: the same text has two spellings."""

    def encode(self, text):
        return [300 if piece == "ab" else ord(piece) for piece in _pieces(text)]

    def decode(self, ids, *, skip_special=True):
        return "".join("ab" if token == 300 else super(Pairs, self).decode([token], skip_special=skip_special) for token in ids)


def _pieces(text):
    pieces = []
    for letter in text:
        if letter == "b" and pieces and pieces[-1] == "a":
            pieces[-1] = "ab"
        else:
            pieces.append(letter)
    return pieces


def test_the_model_s_own_spelling_is_kept_where_the_tokenizer_would_choose_another():
    tokenizer = Pairs()
    first, _ = call([], [user("hi")], "ab", tokenizer=tokenizer)
    messages = [user("hi"), assistant("ab"), user("ab")]
    second = prompt_for([first], messages, tokenizer)
    assert list(second.token_ids) != tokenizer.encode(tokenizer.render(messages))
    assert second.token_ids[: len(first.token_ids)] == first.token_ids
    assert 300 not in first.token_ids
    assert 300 in second.suffix_ids
    assert tokenizer.decode(second.token_ids, skip_special=False) == tokenizer.render(messages)


def test_the_parent_is_the_longest_call_that_the_messages_continue():
    messages = [user("a")]
    first, _ = call([], messages, "1")
    messages += [assistant("1"), user("b")]
    second, _ = call([first], messages, "2")
    other, _ = call([first, second], [user("else")], "3")
    turns = [first, second, other]
    assert prompt_for(turns, [*messages, assistant("2"), user("c")], LETTERS).parent == "call-2"
    assert prompt_for(turns, [user("a"), assistant("1"), user("c")], LETTERS).parent == "call-1"
    assert prompt_for(turns, [user("a"), assistant("not 1"), user("c")], LETTERS).parent == ""
    assert prompt_for(turns, [user("else"), assistant("3"), user("c")], LETTERS).parent == "call-3"


def test_the_same_messages_asked_again_are_a_root_of_their_own():
    first, _ = call([], [user("a")], "1")
    assert prompt_for([first], [user("a")], LETTERS).parent == ""


@pytest.mark.parametrize(
    ("said", "sent_back"),
    [
        ({"content": "yes"}, {"content": [{"type": "text", "text": "y"}, {"type": "text", "text": "es"}]}),
        ({"content": "yes"}, {"content": "yes", "refusal": None, "tool_calls": []}),
        ({"content": ""}, {"content": None}),
        ({"content": ""}, {}),
        (
            {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1, "b": [2]}'}}]},
            {"content": "", "tool_calls": [{"function": {"arguments": '{"b":[2],"a":1}', "name": "f"}}]},
        ),
    ],
)
def test_parents_are_found_by_value(said, sent_back):
    class Blind(Letters):
        def render(self, messages):
            return "x" * len(messages)

    tokenizer = Blind()
    first = recorded(
        "call-1",
        prompt_for([], [user("a")], tokenizer),
        [user("a")],
        columns("x", 0),
        "stop",
        {"role": "assistant", **said},
        tokenizer,
    )
    assert prompt_for([first], [user("a"), {"role": "assistant", **sent_back}, user("b")], tokenizer).parent == "call-1"


@pytest.mark.parametrize("other", [{"content": "no"}, {"content": "yes", "name": "bob"}, {"content": [{"type": "image_url"}]}])
def test_what_the_model_would_see_differently_is_no_parent(other):
    first, _ = call([], [user("a")], "yes")
    messages = [user("a"), {"role": "assistant", **other}, user("b")]
    assert prompt_for([first], messages, LETTERS).parent == ""


def test_a_template_that_rewrites_history_makes_a_root_and_says_so():
    class Forgetful(Letters):
        """Shows only the last two messages."""

        def render(self, messages):
            return super().render(messages[-2:])

    tokenizer = Forgetful()
    first, _ = call([], [user("a")], "1", tokenizer=tokenizer)
    prompt = prompt_for([first], [user("a"), assistant("1"), user("b")], tokenizer)
    assert prompt.parent == ""
    assert prompt.split == "the chat template rewrites earlier messages"
    assert prompt.token_ids == prompt.suffix_ids
    assert prompt.text == "a:1\nu:b\na:"


def test_an_answer_cut_by_length_is_continued_with_the_end_of_turn_that_it_lacks():
    prompt = prompt_for([], [user("a")], LETTERS)
    first = recorded("call-1", prompt, [user("a")], columns("12", 0), "length", assistant("12"), LETTERS)
    second = prompt_for([first], [user("a"), assistant("12"), user("b")], LETTERS)
    assert second.parent == "call-1"
    assert LETTERS.decode(second.suffix_ids, skip_special=False) == "\nu:b\na:"


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
    assert [turn.reward for turn in rewarded(turns, reward, rewards)] == expected
    assert all(turn.reward is None for turn in turns)


def test_a_chain_is_one_row_in_the_order_in_which_it_was_sampled():
    turns = (interaction("a", "12", 0, 1, prompt="Q"), interaction("b", "3", 2, parent="a", prompt="R"))
    (row,) = rows_of(trajectory("0.0", *turns, reward=0.25), 7, 0)
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
    first, second = rows_of(trajectory("0.0", *turns), 0, 0)
    assert first.loss_mask.tolist() == [False, True, False, True]
    assert second.loss_mask.tolist() == [False, False, False, True]
    assert second.token_ids[:2].tolist() == first.token_ids[:2].tolist()
    assert second.logprobs[1] == first.logprobs[1]


def test_tokens_older_than_the_bound_are_context():
    (row,) = rows_of(trajectory("0.0", interaction("a", "1234", 0, 1, 2, 3)), 0, 2)
    assert row.loss_mask.tolist() == [False, False, False, True, True]


def test_a_row_is_truncated_when_its_last_call_was_cut_by_length():
    turns = (interaction("a", "1", finish_reason="length"), interaction("b", "2", parent="a"))
    assert [row.truncated for row in rows_of(trajectory("0.0", *turns), 0, 0)] == [False]
    assert [row.truncated for row in rows_of(trajectory("0.0", turns[0]), 0, 0)] == [True]


def _tree(seed, size):
    dice = random.Random(seed)
    turns = []
    for number in range(size):
        parent = dice.choice(["", *(turn.id for turn in turns)]) if turns else ""
        text = "".join(dice.choice("abcdef") for _ in range(dice.randint(1, 5)))
        versions = sorted(dice.randrange(5) for _ in text)
        turns.append(
            interaction(f"t{number}", text, *versions, parent=parent, prompt=dice.choice("QRS") * dice.randint(0 if parent else 1, 3))
        )
    return tuple(turns)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 10), oldest=st.integers(0, 5))
def test_in_any_tree_each_fresh_token_is_trained_once_and_no_old_one_ever(seed, size, oldest):
    turns = _tree(seed, size)
    rows = rows_of(trajectory("0.0", *turns), 0, oldest)
    leaves = {turn.id for turn in turns} - {turn.parent for turn in turns}
    assert len(rows) == len(leaves)
    fresh = sum(np.count_nonzero(turn.completion.versions_array() >= oldest) for turn in turns)
    assert sum(np.count_nonzero(row.loss_mask) for row in rows) == fresh
    for row in rows:
        assert (row.versions[row.loss_mask] >= max(oldest, 0)).all()
        assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs) == len(row.versions)
        assert not row.logprobs[row.versions == -1].any()


def test_a_call_costs_its_own_tokens_and_not_those_of_its_parents():
    turns, messages = [], [user("a" * 1000)]
    for number in range(5):
        turn, _ = call(turns, list(messages), f"{number}")
        turns.append(turn)
        messages += [assistant(f"{number}"), user("go on")]
    sizes = [len(msgspec.msgpack.encode(turn.interaction)) for turn in turns]
    assert max(sizes[1:]) < 200 < sizes[0]
