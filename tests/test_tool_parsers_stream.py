import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.answer_samples import CALLING, NAMES, ONE_CALL, TOOLS, format_by_name, streamed

MARKS = """<think> </think> <thinking> </thinking> [THINK] [/THINK] <tool_call> </tool_call> <function=weather>
</function> <parameter=city> <parameter=days> </parameter> <arg_key>city</arg_key> <arg_value> </arg_value>
<|python_tag|> [TOOL_CALLS] [ARGS] [CALL_ID] <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜>
<｜tool▁call▁end｜> <｜tool▁sep｜> function ```json ``` <|tool_call_start|> <|tool_call_end|> <|start|>
<|start|>assistant <|channel|> <|channel|>analysis <|channel|>final <|channel|>commentary
to=functions.weather <|constrain|>json <|message|> <|end|> <|call|> <|return|> weather ping search( city=
"name": "arguments": "parameters": "city": {"name": { } [ ] ; , : " {"name":"ping","arguments":{}}
{"name":"ping","parameters":{}} \\ \\" \\u00 "a" 1 true null NaN <tool <|tool <｜ </ < >"""
PIECES = MARKS.split()
PIECES += [
    " ",
    "\n",
    "\n\n",
    "Hello",
    "\x00",
    "é",
    "\r\n",
    "\t",
    " to=",
    "weather\n",
    "\n\n\n",
    *ONE_CALL.values(),
    *(call[:-3] for call in ONE_CALL.values()),
]

odd_texts = st.one_of(
    st.text(max_size=40),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=14).map("".join),
)


@st.composite
def chunkings(draw, texts=odd_texts):
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def mutated_calls(draw):
    """A well-formed completion in which something is missing, doubled or changed."""
    text = (
        "Hello\n" + draw(st.sampled_from(sorted(ONE_CALL.values()))) + draw(st.sampled_from(["", "\n", "; ", "text"]))
    )
    text += draw(st.sampled_from(["", *sorted(ONE_CALL.values())]))
    text = text.removeprefix(draw(st.sampled_from(["", "Hello\n"])))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        text = (
            text[:start]
            + draw(st.sampled_from(["", text[start:end] * 2, '"', "}", "{", "\n", "</tool_call>", ",", "\\"]))
            + text[end:]
        )
    return text


def check_law(name, parts, tools, **kwargs):
    """The joined pieces of a stream equal the parsed whole."""
    answer = format_by_name(name).parse("".join(parts), tools, **kwargs)
    assert streamed(name, parts, tools, **kwargs) == answer
    for call in answer.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
        assert call.name
        assert tools


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=120, deadline=None)
@given(parts=chunkings(), with_tools=st.booleans(), in_reasoning=st.booleans())
def test_any_text_in_any_chunks_reads_as_the_whole_does(name, parts, with_tools, in_reasoning):
    check_law(name, parts, TOOLS if with_tools else (), in_reasoning=in_reasoning)


@pytest.mark.parametrize("name", CALLING)
@settings(max_examples=120, deadline=None)
@given(parts=chunkings(mutated_calls()))
def test_a_damaged_call_in_any_chunks_reads_as_the_whole_does(name, parts):
    check_law(name, parts, TOOLS)
