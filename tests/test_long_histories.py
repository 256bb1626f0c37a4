"""Whatever is kept of a conversation from call to call, a call is the same as if all of it were read anew."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from areal_actors.core.errors import RequestError
from areal_actors.core.values import TokenColumns, pack_ids
from areal_actors.gateway.conversations.message_digests import LONG_HISTORY_BYTES, MessageDigests
from areal_actors.gateway.conversations.message_equality import digest
from areal_actors.gateway.conversations.session_turns import SessionTurns
from areal_actors.gateway.conversations.turns import Prompt, record_turn
from areal_actors.gateway.parsed_histories import ParsedHistories
from areal_actors.gateway.protocols.anthropic import MESSAGES
from areal_actors.gateway.protocols.chat_completions import CHAT
from areal_actors.gateway.protocols.lenient import accept

LONG = {"role": "user", "content": "long ago, in a far away land " * 1200}


def encoded(messages, style=None, **fields):
    return json.dumps({"model": "m", "messages": messages, **fields}, **(style or {})).encode()


def check_equal(histories, body, session="s"):
    """Parse a body with and without what is kept; returns the call."""
    asked, call, ignored = histories.parse(CHAT, body, session)
    expected = CHAT.decode(body)
    assert asked == expected
    assert call == CHAT.call(expected, session)
    assert list(ignored) == list(CHAT.ignored(expected))
    texts = all(isinstance(message["content"], str) for message in call.messages)
    assert call.plain_text == (texts and not any("name" in message for message in call.messages))
    return call


def turn_of(dice, number):
    """Some messages that may come next."""
    name = f"call-{number}"
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    return dice.choice(
        [
            [{"role": "assistant", "content": f"yes, {number}"}, {"role": "user", "content": 'é𝄞\u2028 ] , \\" [' * 3}],
            [
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": name, "content": "42"},
            ],
            [
                {"role": "assistant", "content": "", "reasoning_content": "because"},
                {"role": "user", "content": [{"type": "text", "text": "and?", "cache_control": {}}]},
            ],
            [
                {"role": "assistant", "content": "I am Bob", "name": "bob"},
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:image/png,AAAA"}}],
                },
            ],
            [{"role": "user", "content": "and then?"}],
        ]
    )


@pytest.mark.parametrize("style", [{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])
@pytest.mark.parametrize("seed", range(3))
def test_a_growing_conversation_is_parsed_as_if_it_were_new(style, seed):
    dice, histories, messages = random.Random(seed), ParsedHistories(), [LONG]
    for number in range(25):
        check_equal(histories, encoded(messages, style, temperature=0.5))
        change = dice.random()
        if change < 0.1:
            messages = messages[: dice.randrange(1, len(messages) + 1)]
            while messages[-1]["role"] == "assistant" or messages[-1].get("tool_calls"):
                messages.pop()
        elif change < 0.2:
            place = dice.randrange(len(messages))
            if isinstance(messages[place]["content"], str):
                messages[place] = {**messages[place], "content": messages[place]["content"] + "!"}
        elif change < 0.9:
            messages = [*messages, *turn_of(dice, number)]
    assert histories.reused > 5


def test_messages_that_were_parsed_before_are_the_same_objects():
    histories = ParsedHistories()
    first = check_equal(histories, encoded([LONG]))
    more = [LONG, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    second = check_equal(histories, encoded(more))
    assert second.messages[0] is first.messages[0]
    assert first.messages == (LONG,)
    other = check_equal(histories, encoded(more), session="t")
    assert other.messages[0] is not first.messages[0], "each session has its own"
    assert histories.reused == 1


def test_a_pending_tool_call_of_the_messages_before_is_remembered():
    histories = ParsedHistories()
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [LONG, {"role": "assistant", "tool_calls": calls}]
    check_equal(histories, encoded(messages))
    messages = [*messages, {"role": "tool", "tool_call_id": "c", "content": "1"}]
    check_equal(histories, encoded(messages))
    again = encoded([*messages, {"role": "tool", "tool_call_id": "c", "content": "2"}])
    assert histories.parse(CHAT, again, "s") is None
    with pytest.raises(RequestError, match=r"messages\[3\].tool_call_id"):
        accept(CHAT, again, "s")
    check_equal(histories, encoded([*messages, {"role": "user", "content": "go on"}]))


@pytest.mark.parametrize(
    "body",
    [
        encoded([LONG, {"role": "user"}]),
        encoded([LONG, {"role": "wizard", "content": "x"}]),
        encoded([LONG], unknown=1),
        encoded([LONG], max_tokens=-1),
        encoded([LONG], max_tokens=1, max_completion_tokens=2),
        encoded([]) + b" " * LONG_HISTORY_BYTES,
        encoded([LONG]).replace(b"}]", b"},]"),
        encoded([LONG])[:-9],
        encoded([LONG]).replace(b"far away", b"far \xff away"),
        json.dumps({"messages": {"a": "b" * LONG_HISTORY_BYTES}}).encode(),
    ],
    ids=range(10),
)
def test_anything_unusual_is_left_to_the_ordinary_way(body):
    histories = ParsedHistories()
    assert histories.parse(CHAT, body, "s") is None
    check_equal(histories, encoded([LONG]))
    if LONG["content"][:20].encode() in body and b"\xff" not in body:
        assert histories.parse(CHAT, body, "s") is None, "also after what is known"
    assert histories.parse(MESSAGES, encoded([LONG], max_tokens=3), "s") is None


def test_what_is_kept_has_a_bound_and_the_session_that_called_last_stays():
    size = len(encoded([LONG]))
    histories = ParsedHistories(3 * size)
    for number in range(10):
        check_equal(histories, encoded([LONG]), f"s{number}")
        assert histories.size <= 3 * size
    check_equal(histories, encoded([LONG]), "s9")
    assert histories.reused == 1
    check_equal(histories, encoded([LONG]), "s0")
    assert histories.reused == 1
    assert histories.size == sum(each.size for each in histories._parsed.values())


@pytest.mark.parametrize("seed", range(4))
def test_digests_of_messages_are_those_of_the_whole_list_wherever_they_begin(seed):
    dice, before, messages = random.Random(seed), None, ()
    for number in range(30):
        messages = (*messages, *turn_of(dice, number))
        if dice.random() < 0.2:
            messages = tuple(msgspec.json.decode(msgspec.json.encode(messages)))
        if dice.random() < 0.2:
            messages = messages[: dice.randrange(len(messages))]
        now = MessageDigests(messages, before)
        for count in dice.sample(range(len(messages) + 1), min(3, len(messages) + 1)):
            assert now.exact(count) == digest(list(messages[:count]))
        if dice.random() < 0.8:
            assert now.exact(len(messages)) == digest(list(messages))
            before = now


@pytest.mark.parametrize("seed", range(4))
def test_the_turns_of_a_session_are_the_same_added_one_by_one(seed):
    dice, turns, grown = random.Random(seed), (), None
    for number in range(40):
        names = [turn.interaction.id for turn in turns]
        parent = dice.choice(["", *names])
        answer = {"role": "assistant", "content": "x", "tool_calls": [{"id": f"t{number}"}] if number % 3 else []}
        prompt = Prompt(suffix_ids=pack_ids([number]), parent=parent, message_count=dice.randrange(5))
        turn = record_turn(f"c{number}", prompt, TokenColumns.of([1], [-1.0], [0]), "stop", answer)
        follows = tuple(dice.sample(names, min(len(names), dice.choice([0, 0, 2]))))
        turn = msgspec.structs.replace(turn, interaction=msgspec.structs.replace(turn.interaction, follows=follows))
        turns = (*turns, turn) if dice.random() < 0.9 else (*turns[: dice.randrange(len(turns) + 1)], turn)
        grown, whole = SessionTurns.of(turns, grown), SessionTurns(turns)
        assert list(grown.items()) == list(whole.items())
        for name in ("issued", "continued", "continued_by_messages", "ends", "by_length"):
            assert getattr(grown, name) == getattr(whole, name)
        assert list(grown.ends) == [one.interaction.id for one in turns if one.interaction.id not in grown.continued]
        counts = [one.prompt.message_count for one in grown.shorter_than(4)]
        assert counts == sorted((c for one in turns if 0 < (c := one.prompt.message_count) < 4), reverse=True)
