"""Tools over real HTTP with the unmodified SDKs: however the client re-serializes the answer, the next prompt extends
its exact tokens."""

from __future__ import annotations

import json

import openai
import pytest
from anthropic import beta_async_tool
from support.conversation_families import family
from support.framework_harness import FINAL, call, clients, opened_chat_gateway
from support.samples import work
from test_token_fidelity import FILES

from areal_actors.core.values import SamplingParams, unpack_ids

USER = {"role": "user", "content": "9 times 2?"}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
CHAT_TOOL = {"type": "function", "function": {"name": "multiply", "description": "Multiply.", "parameters": PARAMETERS}}
FLAT_TOOL = {"type": "function", **CHAT_TOOL["function"]}
MESSAGES_TOOL = {"name": "multiply", "description": "Multiply.", "input_schema": PARAMETERS}
LOOSE = call("multiply", '{"b":2.0 , "a":9}')
"""JSON as no template writes it."""
RUN = work(sampling=SamplingParams(max_tokens=400))
FAITHFUL = {"llama3_1", "llama3_2", "qwen2_5", "qwen3_instruct_2507"}
WITHOUT_TOOLS = {"cohere2", "gemma3", "llama3", "phi3_5", "qwen2_5_vl"}
TEMPLATES = {path.stem: path for path in FILES}


@beta_async_tool
async def multiply(a: float, b: float) -> str:
    """Multiply."""
    return f"{a * b:g}"


@pytest.fixture
async def harness():
    async with opened_chat_gateway() as harness:
        yield harness


def extends(harness, trajectory):
    """Each prompt is the earlier one, its completion, and a suffix."""
    before = []
    for place, turn in enumerate(trajectory.interactions):
        suffix = unpack_ids(turn.prompt_suffix)
        assert harness.script.prompts[place] == before + suffix
        assert turn.parent == (trajectory.interactions[place - 1].id if place else "")
        before = [*harness.script.prompts[place], *turn.completion.ids_array().tolist()]


async def streamed(manager):
    """The final answer of a stream of the OpenAI SDK."""
    async with manager as stream:
        async for _ in stream:
            pass
        return await (
            stream.get_final_completion() if hasattr(stream, "get_final_completion") else stream.get_final_response()
        )


# ---------------------------------------------------------------- the whole loop over each protocol


def again(message, way):
    """The answer as one client or another sends it back."""
    message_dict = message.model_dump(exclude_none=True)
    for one in message_dict.get("tool_calls", ()):
        arguments = json.loads(one["function"]["arguments"])
        if way == "reserialised":
            one["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"), sort_keys=True)
        if way == "as JavaScript":
            whole = {name: int(value) if value == int(value) else value for name, value in arguments.items()}
            one["function"]["arguments"] = json.dumps(whole)
        if way == "other ids":
            one["id"] = "x" + one["id"]
    if way == "parts":
        message_dict["content"] = (
            [{"type": "text", "text": message_dict["content"]}] if message_dict.get("content") else None
        )
    return {**message_dict, "annotations": [], "refusal": None} if way == "parts" else message_dict


@pytest.mark.parametrize("way", ["as it is", "reserialised", "as JavaScript", "other ids", "parts"])
@pytest.mark.parametrize("stream", [False, True])
async def test_over_chat_completions(harness, stream, way):
    harness.script.lines = ["I multiply.\n" + LOOSE, LOOSE + "\n" + LOOSE, FINAL]
    opened = await harness.open(RUN)
    messages = [USER]
    async with clients(opened) as (client, _):
        for _ in range(3):
            request = {"model": "m", "messages": messages, "tools": [CHAT_TOOL]}
            completions = client.chat.completions
            answer = await (streamed(completions.stream(**request)) if stream else completions.create(**request))
            assistant = again(answer.choices[0].message, way)
            results = [
                {"role": "tool", "tool_call_id": one["id"], "content": "18"} for one in assistant.get("tool_calls", ())
            ]
            assert answer.choices[0].finish_reason == ("tool_calls" if results else "stop")
            messages = [*messages, assistant, *results]
    trajectory = await harness.trajectory(opened, run=RUN)
    assert len(trajectory.interactions) == 3
    extends(harness, trajectory)
    assert harness.text(harness.script.prompts[2]).count(LOOSE) == 3
    assert answer.choices[0].message.content == FINAL


@pytest.mark.parametrize("way", ["named", "objects", "dumped"])
@pytest.mark.parametrize("stream", [False, True])
async def test_over_responses_with_the_earlier_one_named_or_everything_sent_again(harness, stream, way):
    harness.script.lines = [LOOSE, "So.\n" + LOOSE, FINAL]
    opened = await harness.open(RUN)
    sent, before = [USER], None
    async with clients(opened) as (client, _):
        for _ in range(3):
            request = {"model": "m", "input": sent, "tools": [FLAT_TOOL], "previous_response_id": before}
            answer = await (
                streamed(client.responses.stream(**request)) if stream else client.responses.create(**request)
            )
            calls = [item for item in answer.output if item.type == "function_call"]
            results = [{"type": "function_call_output", "call_id": item.call_id, "output": "18"} for item in calls]
            output = answer.output if way == "objects" else [item.model_dump() for item in answer.output]
            sent, before = (results, answer.id) if way == "named" else ([*sent, *output, *results], None)
    trajectory = await harness.trajectory(opened, run=RUN)
    assert len(trajectory.interactions) == 3
    extends(harness, trajectory)
    assert answer.output_text == FINAL


@pytest.mark.parametrize("stream", [False, True])
async def test_over_messages_with_everything_sent_again(harness, stream):
    harness.script.lines = ["I see.\n" + LOOSE, LOOSE + "\n" + LOOSE, FINAL]
    opened = await harness.open(RUN)
    messages = [USER]
    async with clients(opened) as (_, client):
        for _ in range(3):
            request = {"model": "m", "max_tokens": 300, "messages": messages, "tools": [MESSAGES_TOOL]}
            if stream:
                async with client.messages.stream(**request) as events:
                    answer = await events.get_final_message()
            else:
                answer = await client.messages.create(**request)
            uses = [block for block in answer.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": "18"} for use in uses]
            messages = [
                *messages,
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": results},
            ]
    extends(harness, await harness.trajectory(opened, run=RUN))
    assert (answer.content[0].text, answer.stop_reason) == (FINAL, "end_turn")


@pytest.mark.parametrize("stream", [False, True])
async def test_over_messages_with_the_sdk_s_own_tool_runner_and_its_threads(harness, stream):
    harness.script.lines = [LOOSE, LOOSE + "\n" + LOOSE, FINAL]
    opened = await harness.open(RUN)
    async with clients(opened) as (_, client):
        runner = client.beta.messages.tool_runner(
            model="m", max_tokens=300, system="Be brief.", messages=[USER], tools=[multiply], stream=stream
        )
        answer = await runner.until_done()
    assert answer.content[0].text == FINAL
    extends(harness, await harness.trajectory(opened, run=RUN))


# ---------------------------------------------------------------- what the model does and may do


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_does_not_parse_stays_text_and_the_event_has_the_reason(harness, stream):
    broken = '<tool_call>\n{"name": "multiply", "arguments": {"a": }}\n</tool_call>'
    harness.script.lines = [broken, FINAL]
    opened = await harness.open(RUN)
    async with clients(opened) as (client, _):
        request = {"model": "m", "messages": [USER], "tools": [CHAT_TOOL]}
        completions = client.chat.completions
        answer = await (streamed(completions.stream(**request)) if stream else completions.create(**request))
        message = answer.choices[0].message
        assert (message.content, message.tool_calls, answer.choices[0].finish_reason) == (broken, None, "stop")
        await client.chat.completions.create(model="m", messages=[USER, message, USER], tools=[CHAT_TOOL])
    assert "its JSON is invalid" in harness.recorded()[0].tool_call_error
    extends(harness, await harness.trajectory(opened, run=RUN))


async def test_where_no_tool_may_be_called_what_looks_like_a_call_is_text_and_is_continued(harness):
    harness.script.lines = [LOOSE, FINAL]
    opened = await harness.open(RUN)
    async with clients(opened) as (client, _):
        answer = await client.chat.completions.create(model="m", messages=[USER], tools=[CHAT_TOOL], tool_choice="none")
        assert answer.choices[0].message.content == LOOSE
        await client.chat.completions.create(
            model="m", messages=[USER, answer.choices[0].message, USER], tools=[CHAT_TOOL], tool_choice="none"
        )
    assert [sampling.constraint for sampling in harness.script.sampling] == [None, None]
    extends(harness, await harness.trajectory(opened, run=RUN))


async def test_calls_beyond_the_first_are_reported_where_one_is_allowed(harness):
    harness.script.lines = [LOOSE + "\n" + LOOSE] * 2
    async with clients(await harness.open(RUN)) as (client, other):
        answer = await client.chat.completions.create(
            model="m", messages=[USER], tools=[CHAT_TOOL], parallel_tool_calls=False
        )
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        message = await other.messages.create(
            model="m", max_tokens=300, messages=[USER], tools=[MESSAGES_TOOL], tool_choice=choice
        )
    assert len(answer.choices[0].message.tool_calls) == len(message.content) == 2
    assert {recorded.tool_call_error for recorded in harness.recorded()} == {
        "2 tool calls although parallel_tool_calls is false"
    }


async def test_what_must_be_called_constrains_the_engine_over_every_protocol(harness):
    harness.script.lines = [LOOSE] * 6
    async with clients(await harness.open(RUN)) as (client, other):
        for choice in ("required", {"type": "function", "function": {"name": "multiply"}}):
            await client.chat.completions.create(model="m", messages=[USER], tools=[CHAT_TOOL], tool_choice=choice)
        for choice in ("required", {"type": "function", "name": "multiply"}):
            await client.responses.create(model="m", input="?", tools=[FLAT_TOOL], tool_choice=choice)
        for choice in ({"type": "any"}, {"type": "tool", "name": "multiply"}):
            await other.messages.create(
                model="m", max_tokens=300, messages=[USER], tools=[MESSAGES_TOOL], tool_choice=choice
            )
        with pytest.raises(openai.BadRequestError, match="'tool_choice'"):
            await client.chat.completions.create(model="m", messages=[USER], tool_choice="required")
    assert [sampling.constraint.kind for sampling in harness.script.sampling] == ["lark"] * 6


# ---------------------------------------------------------------- other families' templates


@pytest.mark.skipif(
    not FILES, reason="there are no chat templates; set AREAL_CHAT_TEMPLATES to a folder of .jinja files"
)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
async def test_over_every_family_s_template_tools_come_back_and_prompts_extend_or_have_a_split_reason(name, dropped):
    """The model writes its calls and its reasoning as its own template does; clients drop the reasoning or keep it."""
    chat = family(TEMPLATES[name].read_text(encoding="utf-8"))
    called = {"id": "abcdefghi", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 9, "b": 2}'}}
    answer = {"role": "assistant", "content": "", "tool_calls": [called]}
    opened = chat.render([USER], [CHAT_TOOL])
    written = chat.render([USER, answer], [CHAT_TOOL], add_generation_prompt=False)
    line = written[len(opened) :] if written.startswith(opened) else LOOSE
    thought = "I think.</think>\n\n" if opened.rstrip().endswith("<think>") else ""
    async with opened_chat_gateway(chat=chat) as harness:
        ids = [number for number in chat.encode(thought + line) if number not in chat.stop_ids]
        harness.script.lines = [[*ids, chat.stop_ids[0]], FINAL, FINAL]
        session = await harness.open(RUN)
        messages = [USER]
        async with clients(session) as (client, _):
            if name in WITHOUT_TOOLS:
                with pytest.raises(openai.BadRequestError, match="the template does not support tools"):
                    await client.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])
                return
            for _ in range(3):
                got = await client.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])
                message = got.choices[0].message.model_dump(exclude_none=True)
                if dropped:
                    message.pop("reasoning_content", None)
                results = [
                    {"role": "tool", "tool_call_id": one["id"], "content": "18"}
                    for one in message.get("tool_calls", ())
                ]
                messages = [*messages, message, *(results or [{"role": "user", "content": "sure?"}])]
        trajectory = await harness.trajectory(session, run=RUN)
        assert trajectory.interactions[0].completion.ids_array().tolist() == [*ids, chat.stop_ids[0]]
        if name in FAITHFUL:
            extends(harness, trajectory)
        for turn, recorded in zip(trajectory.interactions[1:], harness.recorded()[1:], strict=True):
            assert turn.parent
            assert bool(turn.prefix) != bool(recorded.prefix_break_reason)


# ---------------------------------------------------------------- the real engine
