"""Items of earlier answers that a client of OpenAI's Responses names by their ids, and what every protocol's stream
begins with."""

from __future__ import annotations

import json

import aiohttp
import pytest
from support.framework_harness import (
    FINAL,
    THINKING_TEMPLATE,
    assert_extends,
    call,
    chat_tokenizer,
    opened_chat_gateway,
)
from support.gateway_harness import post
from support.samples import work

from areal_actors.core.values import SamplingParams

USER = {"role": "user", "content": "9 times 2?"}
TOOL = {
    "type": "function",
    "name": "multiply",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
}
CUSTOM = {"type": "custom", "name": "note"}
LOOSE = call("multiply", '{"b":2.0 , "a":9}')
NOTE = call("note", '{"input": "nine"}')
THINKING = "<think>\nI see.\n</think>\n\n"
RUN = work(sampling=SamplingParams(max_tokens=400))
KNOWN = ("reasoning", "message")


@pytest.fixture
async def harness():
    async with opened_chat_gateway(chat=chat_tokenizer(THINKING_TEMPLATE)) as harness:
        harness.opened = await harness.open(RUN)
        yield harness


def reference(item):
    return {"type": "item_reference", "id": item["id"]}


def results(output):
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    return [
        {"type": kinds[item["type"]], "call_id": item["call_id"], "output": "18"}
        for item in output
        if item["type"] in kinds
    ]


async def responded(harness, items, status=200, **fields):
    found, answer = await post(harness.opened, {"input": items, "tools": [TOOL, CUSTOM], **fields}, "/responses")
    assert found == status, answer
    return answer


@pytest.mark.parametrize(
    "by_reference", [KNOWN, (*KNOWN, "custom_tool_call"), (*KNOWN, "custom_tool_call", "function_call")]
)
async def test_items_may_be_named_by_their_ids(harness, by_reference):
    harness.script.lines = [f"{THINKING}I multiply.\n{LOOSE}\n{NOTE}", f"So.\n{LOOSE}", FINAL]
    items = [USER]
    for _ in range(3):
        output = (await responded(harness, items))["output"]
        items += [reference(item) if item["type"] in by_reference else item for item in output] + results(output)
    assert [item.get("type", "message") for item in items].count("item_reference") >= 4
    trajectory = await harness.trajectory(harness.opened, run=RUN)
    assert len(trajectory.interactions) == 3
    assert_extends(harness, trajectory)


async def test_an_id_alone_is_a_reference_and_an_answer_may_be_named_twice(harness):
    harness.script.lines = [FINAL, FINAL, FINAL]
    first = (await responded(harness, [USER]))["output"][0]
    second = (await responded(harness, [USER, {"id": first["id"]}, USER]))["output"][0]
    await responded(harness, [USER, {"id": first["id"], "type": None}, USER, reference(second), USER])
    trajectory = await harness.trajectory(harness.opened, run=RUN)
    assert_extends(harness, trajectory)


@pytest.mark.parametrize(
    "identifier", ["msg_nothing-0", "rs_{}", "fc_123456789", "ctc_123456789", "resp_{}", "msg_", "{}", "x"]
)
async def test_an_unknown_id_is_refused_by_its_place(harness, identifier):
    harness.script.lines = [FINAL]
    answered = await responded(harness, [USER])
    named = {"type": "item_reference", "id": identifier.format(answered["id"])}
    error = (await responded(harness, [USER, named, USER], status=400))["error"]
    assert error["param"] == "input[1].id"
    assert "send the item itself" in error["message"]


async def test_an_id_of_another_session_is_unknown(harness):
    harness.script.lines = [FINAL]
    item = (await responded(harness, [USER]))["output"][0]
    harness.opened = await harness.open(work("9.0", sampling=SamplingParams(max_tokens=400)))
    await responded(harness, [USER, reference(item), USER], status=400)


async def test_the_first_event_of_an_anthropic_stream_has_the_prompt_s_tokens(harness):
    harness.script.lines = [FINAL, FINAL]
    messages, counted = [USER], []
    async with aiohttp.ClientSession(headers={"x-api-key": harness.opened.api_key}) as http:
        for _ in range(2):
            body = {"messages": messages, "max_tokens": 100, "stream": True}
            async with http.post(harness.opened.base_url + "/messages", json=body) as response:
                lines = (await response.text()).splitlines()
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
            start, end = events[0]["message"]["usage"], events[-2]["usage"]
            assert [name for name in start if start[name] != end[name]] == ["output_tokens"]
            counted.append((start["input_tokens"], start["cache_read_input_tokens"], start["output_tokens"]))
            messages = [*messages, {"role": "assistant", "content": FINAL}, USER]
    prompts, sampled = [list(map(len, one)) for one in (harness.script.prompts, harness.script.sampled)]
    known = prompts[0] + sampled[0]
    assert counted == [(prompts[0], 0, 0), (prompts[1] - known, known, 0)]


@pytest.mark.parametrize("stream", [False, True])
async def test_text_blocks_of_anthropic_have_no_citations(harness, stream):
    harness.script.lines = [FINAL]
    body = {"messages": [USER], "max_tokens": 100, "stream": stream}
    async with (
        aiohttp.ClientSession(headers={"x-api-key": harness.opened.api_key}) as http,
        http.post(harness.opened.base_url + "/messages", json=body) as response,
    ):
        text = await response.text()
    assert '"type":"text"' in text
    assert "citations" not in text
