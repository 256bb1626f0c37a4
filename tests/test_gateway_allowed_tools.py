"""Allowed tools at the gateway: the prompt keeps all tools, and a call of one that is left out is text with a cause."""

from __future__ import annotations

import pytest
from support.answer_samples import ONE_CALL
from support.framework_harness import call, clients, opened_chat_gateway
from support.samples import work

from areal_actors.core.values import SamplingParams
from areal_actors.gateway.unread_calls import cause_of
from areal_actors.tokenization.tool_parsers.gpt_oss import GptOss

USER = {"role": "user", "content": "9 times 2?"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("multiply", "divide")]


def allow(name):
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": name}}]},
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_that_tool_choice_leaves_out_stays_in_the_prompt_and_its_call_is_text(stream):
    async with opened_chat_gateway() as harness:
        harness.script.lines = [call("divide", '{"a": 9}')] * 2
        async with clients(await harness.open(work(sampling=SamplingParams(max_tokens=400)))) as (client, _):
            request = {"model": "m", "messages": [USER], "tools": TOOLS, "stream": stream}
            answers = []
            for name in ("divide", "multiply"):
                answer = await client.chat.completions.create(**request, tool_choice=allow(name))
                if not stream:
                    answers.append(answer.choices[0].message)
                    continue
                answers.append([chunk.choices[0].delta async for chunk in answer])
        if stream:
            called, refused = [[one for delta in deltas for one in delta.tool_calls or ()] for deltas in answers]
            text = "".join(delta.content or "" for delta in answers[1])
        else:
            called, refused = [answer.tool_calls or [] for answer in answers]
            text = answers[1].content
        assert ([one.function.name for one in called], refused) == (["divide"], [])
        assert '"divide"' in text
        first, second = harness.recorded()
        assert (first.tool_call_error, second.tool_call_error) == ("", "tool_choice does not allow a call of 'divide'")
        assert cause_of(second.tool_call_error) == "not_allowed"
        assert first.prompt_tokens == second.prompt_tokens


def test_a_call_of_a_withheld_tool_is_text_in_the_harmony_format_too():
    text = ONE_CALL["gpt_oss"]
    answer = GptOss().parse(text, [TOOLS[0]], withheld=frozenset({"weather"}))
    assert (answer.tool_calls, answer.tool_call_error) == ((), "tool_choice does not allow a call of 'weather'")
    assert "functions.weather" in answer.text
