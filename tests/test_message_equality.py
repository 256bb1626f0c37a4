from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_actors.gateway.conversations.message_equality import by_value, first_difference, same_answer, value_digests

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def calling(arguments, **fields):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **fields}


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_arguments_are_the_same_however_a_client_writes_their_json(arguments):
    ours = calling(json.dumps(arguments))
    for theirs in (
        json.dumps(arguments, ensure_ascii=False, separators=(",", ":")),
        json.dumps(dict(reversed(arguments.items())), indent=2),
    ):
        assert same_answer(ours, calling(theirs))
        assert value_digests(b"", [ours]) == value_digests(b"", [calling(theirs)])


@pytest.mark.parametrize(
    ("sampled", "sent", "same"),
    [
        ('{"x": 2.0}', '{"x": 2}', True),
        ('{"x": true}', '{"x": 1}', False),
        ('{"x": [0]}', '{"x": [false]}', False),
        ('{"x": {"y": 1}}', '{"x": {"z": 1}}', False),
        ('{"x": [1]}', '{"x": [1, 1]}', False),
        ("{}", "", True),
        ("{", "{", True),
        ("{", "{}", False),
        ('{"x": 1' + "0" * 40 + "}", '{"x":1' + "0" * 40 + "}", True),
        ('{"x": "1"}', '{"x": 1}', False),
    ],
)
def test_other_arguments_are_another_answer(sampled, sent, same):
    assert same_answer(calling(sampled), calling(sent)) is same


def test_nothing_that_a_client_sends_is_too_deep_or_too_large_for_a_digest():
    for arguments in ("[" * 5000 + "]" * 5000, '{"x": ' + "9" * 400 + "}", '"\\ud800"', "{"):
        assert len(value_digests(b"", [calling(arguments)])) == 1
        assert same_answer(calling(arguments), calling(arguments))


@pytest.mark.parametrize("other", [{"content": "x"}, {"role": "user"}, {"name": "bob"}, {"tool_calls": []}])
def test_another_text_speaker_or_number_of_calls_is_another_answer(other):
    assert not same_answer(calling("{}"), calling("{}", **other))


def test_ids_of_calls_and_reasoning_do_not_matter_to_an_answer():
    sent = calling("{}", reasoning_content=None, refusal=None)
    sent["tool_calls"][0]["id"] = "another"
    assert same_answer(calling("{}", reasoning_content="because"), sent)


@given(st.text(), st.text())
def test_parts_of_text_are_one_string_and_texts_that_differ_are_not(one, other):
    whole = {"role": "user", "content": one + other}
    parts = {"role": "user", "content": [{"type": "text", "text": one}, {"type": "text", "text": other}], "name": None}
    assert by_value(whole) == by_value(parts)
    assert (by_value(whole) == by_value({"role": "user", "content": one})) is (other == "")


def test_zero_and_false_are_not_nothing():
    assert by_value({"role": "tool", "content": "x", "ok": False, "exit": 0}) == {
        "role": "tool",
        "content": "x",
        "ok": False,
        "exit": 0,
    }


def test_digests_stand_for_everything_before_them():
    messages = [{"role": "user", "content": text} for text in "abc"]
    digests = value_digests(b"", messages)
    assert value_digests(digests[0], messages[1:]) == digests[1:]
    assert value_digests(b"", [messages[1], messages[0], messages[2]])[-1] != digests[-1]


def test_the_first_message_that_differs_is_reported():
    sampled = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert first_difference(sampled, [{"role": "user", "content": ["x"]}]) == 0
    assert first_difference(sampled, [sampled[0], {"role": "assistant", "content": "c"}]) == 1
    assert first_difference(sampled, sampled[:1]) == 1
