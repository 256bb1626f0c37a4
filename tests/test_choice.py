"""One choice: streamed and whole output are equal, and the sampled tokens are recorded."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.conversation_families import byte_pairs, family
from support.framework_harness import call, chat_tokenizer
from support.samples import letters

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.values import SamplingParams, TokenColumns, pack_ids
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion_check import PublishedVersions
from areal_actors.gateway.conversations.turns import Prompt
from areal_actors.messages import Generated
from areal_actors.tokenization.tokenizer import ChatTokenizer

TOOLS = ({"type": "function", "function": {"name": "calculate", "parameters": {"type": "object"}}},)
CALCULATE = call("calculate", '{"expression": "1"}')
MARK = "<|im_start|>"
"""Special, and no end of a turn."""


def choice(chat, *, stream, tools=TOOLS, **options):
    sampling = SamplingParams(
        stop=options.pop("stop", ()), top_logprobs=options.pop("top", 0), max_tokens=options.pop("most", 500)
    )
    prompt = Prompt(suffix_ids=pack_ids([1, 2]), opens_reasoning=options.pop("in_reasoning", False))
    return Choice(
        "s-1",
        0,
        prompt,
        sampling,
        chat,
        tools,
        stream=stream,
        **{"logprobs": False, "published": PublishedVersions(1), **options},
    )


def part(ids, reason="", *, top=0, version=0):
    logprobs = [-float(number % 7) for number in ids]
    tops = [number for number in ids for _ in range(top)]
    return Generated(
        columns=TokenColumns.of(ids, logprobs, [version] * len(ids)),
        top_ids=pack_ids(tops),
        top_logprobs=TokenColumns.of(tops, [-0.25] * len(tops), [0] * len(tops)).logprobs,
        finish_reason=reason,
    )


def stream_pieces(chat, pieces, reason="stop", **options):
    """Joined output of a streamed choice for these pieces of ids, its last part, and its turn."""
    streamed, emitted = choice(chat, stream=True, **options), []
    for place, ids in enumerate(pieces):
        generated = part(ids, reason if place + 1 == len(pieces) else "", top=options.get("top", 0))
        streamed.add_tokens(generated)
        emitted += streamed.emit(generated)
    parts, turn = streamed.finish(last=True)
    calls = {}
    for one in [*emitted, *parts]:
        for piece in one.tool_calls:
            before = calls.setdefault(piece.index, ("", "", ""))
            calls[piece.index] = (before[0] + piece.id, before[1] + piece.name, before[2] + piece.arguments)
    everything = [*emitted, *parts]
    text, reasoning = "".join(one.text for one in everything), "".join(one.reasoning for one in everything)
    return (
        (text, reasoning, calls, [token for one in everything for token in one.logprobs]),
        parts[-1],
        turn,
        streamed.whole,
    )


def whole(chat, ids, reason="stop", **options):
    one = choice(chat, stream=False, **options)
    one.add_tokens(part(ids, reason, top=options.get("top", 0)))
    (answer,), turn = one.finish(last=True)
    calls = {piece.index: (piece.id, piece.name, piece.arguments) for piece in answer.tool_calls}
    return (answer.text, answer.reasoning, calls, list(answer.logprobs)), answer, turn


SNIPPETS = st.sampled_from(
    [CALCULATE, "<tool_call>", "</tool_call>", "{", "é🙂", "Stop", "St", "op", "\n", " a ", MARK, '{"name": "x"}']
)


@given(
    text=st.lists(SNIPPETS | st.text(max_size=6), min_size=1, max_size=6).map("".join),
    stop=st.lists(st.sampled_from(["Stop", "op", "🙂", "e", MARK, "a" + MARK, "top</"]), max_size=2),
    seed=st.integers(0, 99),
    ending=st.sampled_from(["stop", "length"]),
)
def test_a_stream_adds_up_to_the_whole_answer_and_both_record_what_was_sampled(text, stop, seed, ending):
    """The engine goes on to the first token that completes a stop string; here the text goes on behind it, too."""
    chat, dice = chat_tokenizer(), random.Random(seed)
    ids = chat.encode(text.encode(errors="replace").decode()).copy() or chat.encode("x").copy()
    ids += [*chat.stop_ids] if ending == "stop" else []
    cuts = sorted(dice.sample(range(1, len(ids)), min(len(ids) - 1, dice.randint(0, 5)))) if len(ids) > 1 else []
    pieces = [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    options = {"stop": tuple(stop), "logprobs": True, "top": 2}
    streamed, last, turn, in_one = stream_pieces(chat, pieces, ending, **options)
    entire, answer, other = whole(chat, ids, ending, **options)
    assert streamed == entire
    assert (in_one.text, in_one.tool_calls, in_one.logprobs) == (answer.text, answer.tool_calls, answer.logprobs)
    assert (last.finish_reason, last.stop_sequence, last.tool_call_error) == (
        answer.finish_reason,
        answer.stop_sequence,
        answer.tool_call_error,
    )
    assert turn.interaction.completion.ids_array().tolist() == other.interaction.completion.ids_array().tolist() == ids
    assert turn.answer == other.answer
    assert MARK not in answer.text, "special tokens are no text, not even beside stop strings"
    assert not any(re.search(re.escape(one), answer.text) for one in stop if MARK not in one and not answer.tool_calls)


@pytest.mark.parametrize(
    ("text", "stop", "left", "matched"),
    [
        ("one Stop two", ("Stop",), "one ", "Stop"),
        (f"one{MARK}", (MARK,), "one", MARK),
        (f"one a{MARK}", ("a" + MARK,), "one ", "a" + MARK),
        (f"a{MARK}b c", ("ab", "c"), "ab ", "c"),
        (f"a{MARK}b", ("nothing",), "ab", ""),
        ("one Sto", ("Stop",), "one Sto", ""),
    ],
)
def test_a_stop_string_ends_the_text_and_its_tokens_stay(text, stop, left, matched):
    chat = chat_tokenizer()
    ids = chat.encode(text)
    (emitted, *_), answer, turn = whole(chat, ids, stop=stop)
    assert (emitted, answer.stop_sequence, turn.answer["content"]) == (left, matched, left)
    assert turn.interaction.completion.ids_array().tolist() == ids
    assert stream_pieces(chat, [[number] for number in ids], stop=stop)[0][0] == left


def test_what_was_held_back_comes_out_when_the_worker_dies_with_the_last_word_missing():
    chat = chat_tokenizer()
    ids = chat.encode("one St")
    streamed = choice(chat, stream=True, stop=("Stop",), most=len(ids))
    generated = part(ids)
    streamed.add_tokens(generated)
    emitted = streamed.emit(generated)
    streamed.on_worker_lost()
    parts, turn = streamed.finish(last=True)
    assert "".join(one.text for one in [*emitted, *parts]) == turn.answer["content"] == "one St"
    assert parts[-1].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_nothing_but_the_end_is_empty(stream):
    chat = chat_tokenizer()
    emitted, last, turn = stream_pieces(chat, [[*chat.stop_ids]])[:3] if stream else whole(chat, [*chat.stop_ids])
    assert emitted[:3] == ("", "", {})
    assert (last.finish_reason, last.completion_tokens, turn.answer["content"]) == ("stop", 1, "")


def test_a_character_cut_in_the_middle_is_the_replacement_character_in_the_text_only():
    chat = chat_tokenizer()
    ids = chat.encode("a🙂")[:-1]
    for emitted, _, turn in (
        whole(chat, ids, "length"),
        stream_pieces(chat, [[number] for number in ids], "length")[:3],
    ):
        assert emitted[0] == "a\ufffd"
        assert turn.interaction.completion.ids_array().tolist() == ids


def test_logprobs_have_the_numbers_of_the_columns_without_the_end_of_the_turn():
    chat = chat_tokenizer()
    ids = [*chat.encode("one 🙂 two"), *chat.stop_ids]
    (*_, tokens), _, turn = whole(chat, ids, logprobs=True, top=2)
    assert [token.logprob for token in tokens] == turn.interaction.completion.logprobs_array().tolist()[:-1]
    assert b"".join(token.token for token in tokens).decode() == "one 🙂 two"
    assert [token.top for token in tokens] == [((chat.token_bytes(number), -0.25),) * 2 for number in ids[:-1]]
    assert len(whole(chat, ids[:-1], "length", logprobs=True, top=2)[0][3]) == len(ids) - 1


def test_a_call_has_one_id_of_nine_letters_and_digits_whole_and_streamed():
    chat = chat_tokenizer()
    ids = [*chat.encode(f"{CALCULATE}\n{CALCULATE}"), *chat.stop_ids]
    calls = whole(chat, ids)[0][2]
    assert calls == stream_pieces(chat, [[number] for number in ids])[0][2]
    names = [identifier for identifier, _, _ in calls.values()]
    assert len(set(names)) == 2
    assert all(re.fullmatch("[a-z0-9]{9}", name) for name in names)


def test_a_call_that_does_not_parse_stays_text_and_the_problem_is_reported():
    chat = chat_tokenizer()
    broken = '<tool_call>\n{"name": "calculate", "arguments": {"expression": }}\n</tool_call>'
    (text, _, calls, _), answer, _ = whole(chat, [*chat.encode(broken), *chat.stop_ids])
    assert (text, calls, answer.finish_reason) == (broken, {}, "stop")
    assert "its JSON is invalid" in answer.tool_call_error


def test_calls_beyond_the_first_are_delivered_and_reported_where_they_may_not_be_parallel():
    chat = chat_tokenizer()
    ids = [*chat.encode(f"{CALCULATE}\n{CALCULATE}"), *chat.stop_ids]
    (_, _, calls, _), answer, _ = whole(chat, ids, parallel_tool_calls=False)
    assert (len(calls), answer.tool_call_error) == (2, "2 tool calls although parallel_tool_calls is false")


def test_reasoning_that_the_prompt_opened_is_reasoning():
    chat = family("{{ messages }}<think></think><tool_call>{{ tools }}")
    ids = chat.encode("because</think>\n\nso")
    for emitted, last, turn in (
        whole(chat, ids, "length", in_reasoning=True),
        stream_pieces(chat, [[number] for number in ids], "length", in_reasoning=True)[:3],
    ):
        assert emitted[:2] == ("so", "because")
        assert last.reasoning_tokens == len(chat.encode("because"))
        assert turn.answer == {"role": "assistant", "content": "so", "reasoning_content": "because"}


def test_long_streams_cost_no_more_per_token_than_short_ones():
    """Versions and columns are joined once; joining them token by token would take minutes here."""
    chat = letters()
    streamed = choice(chat, stream=True, tools=(), most=60_000)
    for number in range(60_000):
        generated = part([97], version=number // 30_000)
        streamed.add_tokens(generated)
        streamed.emit(generated)
    streamed.finish_reason = "length"
    turn = streamed.finish(last=True)[1]
    assert [(span.start, span.end) for span in turn.interaction.completion.versions] == [(0, 30_000), (30_000, 60_000)]


@pytest.mark.parametrize(
    ("generated", "error"),
    [
        (Generated(error="'top_k' is wrong", error_field="top_k"), RequestError),
        (Generated(error="out of memory"), EngineError),
        (Generated(finish_reason="stop"), EngineError),
    ],
)
def test_what_a_worker_complains_of_is_raised(generated, error):
    with pytest.raises(error):
        choice(chat_tokenizer(), stream=False).add_tokens(generated)


def test_tokenizers_without_the_fast_executor_give_the_same():
    slow = ChatTokenizer(byte_pairs((MARK, "</s>")), "", {}, [byte_pairs((MARK, "</s>")).token_to_id("</s>")])
    slow.byte_pairs = None
    fast = ChatTokenizer(byte_pairs((MARK, "</s>")), "", {}, slow.stop_ids)
    for text in (f"one 🙂{MARK} two Stop three</s>", "日本</s>", "Stop</s>", f"{MARK}a</s>"):
        ids = fast.encode(text)
        for stop in ((), ("Stop",), (MARK,), ("a", "🙂" + MARK)):
            assert whole(slow, ids, stop=stop)[0] == whole(fast, ids, stop=stop)[0]
            assert (
                stream_pieces(slow, [[number] for number in ids], stop=stop)[0]
                == stream_pieces(fast, [ids], stop=stop)[0]
            )
