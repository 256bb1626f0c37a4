"""The gateway with chat templates of several families: tools that are refused, undeclared tools, ids that the model
wrote."""

from __future__ import annotations

import json

import openai
import pytest
from support.conversation_families import family
from support.family_templates import ONE_CALL, TEMPLATES
from support.framework_harness import FINAL, call, clients, opened_chat_gateway
from support.gateway_harness import GatewayHarness, opened, post
from support.samples import work

from areal_actors.core.errors import SetupError
from areal_actors.core.values import SamplingParams
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.gateway.template_settings import apply_template_settings
from areal_actors.messages import ToolsRefused

USER = {"role": "user", "content": "9 times 2?"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "multiply", "description": "Multiply.", "parameters": SCHEMA}}
PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor"
    " %}<|im_start|>assistant\n"
)
REQUESTS = {
    "/chat/completions": {"messages": [USER], "tools": [CHAT_TOOL]},
    "/responses": {"input": "9 times 2?", "tools": [{"type": "function", **CHAT_TOOL["function"]}]},
    "/messages": {"max_tokens": 10, "messages": [USER], "tools": [{"name": "multiply", "input_schema": SCHEMA}]},
}


def gateway(template, **settings):
    return opened(GatewayHarness(GatewaySettings(**settings), chat=family(template)))


@pytest.mark.parametrize("path", REQUESTS)
async def test_tools_are_refused_where_the_template_has_none_and_the_event_has_the_reason(path):
    async with gateway(PLAIN) as harness:
        session = await harness.open()
        status, body = await post(session, {"model": "m", **REQUESTS[path]}, path=path)
        assert status == 400
        assert (
            "'tools' cannot be used with this model's chat template: the template does not support tools"
            in body["error"]["message"]
        )
        assert "gateway.chat_template" in body["error"]["message"]
        events = [one.open(ToolsRefused) for one in harness.bus._log if one.subject == ToolsRefused.subject]
        assert [(event.format, event.reason) for event in events] == [("none", "the template does not support tools")]


async def test_tools_that_may_not_be_called_are_not_refused():
    async with gateway(PLAIN) as harness:
        session = await harness.open()
        counted, body = await post(
            session, {"messages": [USER], "model": "m", "tools": []}, path="/messages/count_tokens"
        )
        assert (counted, body["input_tokens"] > 0) == (200, True)


async def test_a_format_of_another_family_refuses_tools_with_the_rendered_call():
    async with gateway(TEMPLATES["seed_oss"], tool_format="hermes") as harness:
        status, body = await post(await harness.open(), {"model": "m", **REQUESTS["/chat/completions"]})
        assert (status, "does not parse as hermes" in body["error"]["message"]) == (400, True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_an_undeclared_tool_is_handed_on_as_a_call_in_every_protocol(stream):
    async with opened_chat_gateway() as harness:
        harness.script.lines = [call("divide", '{"a": 9}')] * 3
        async with clients(await harness.open(work(sampling=SamplingParams(max_tokens=400)))) as (client, other):
            request = {"model": "m", "messages": [USER], "tools": [CHAT_TOOL]}
            if stream:
                async with client.chat.completions.stream(**request) as parts:
                    chat = await parts.get_final_completion()
            else:
                chat = await client.chat.completions.create(**request)
            responses = await client.responses.create(
                model="m", input="9 / 2?", tools=[{"type": "function", **CHAT_TOOL["function"]}]
            )
            messages = await other.messages.create(
                model="m", max_tokens=300, messages=[USER], tools=[{"name": "multiply", "input_schema": SCHEMA}]
            )
        assert [one.function.name for one in chat.choices[0].message.tool_calls] == ["divide"]
        assert chat.choices[0].finish_reason == "tool_calls"
        assert [(item.type, item.name) for item in responses.output] == [("function_call", "divide")]
        assert [(block.type, block.name, block.input) for block in messages.content] == [
            ("tool_use", "divide", {"a": 9})
        ]
        assert {one.tool_call_error for one in harness.recorded()} == {
            "no tool is named 'divide'; declared are multiply"
        }


async def test_the_agents_answer_to_an_undeclared_call_continues_its_tokens():
    async with opened_chat_gateway() as harness:
        harness.script.lines = [call("divide", '{"a": 9}'), FINAL]
        session = await harness.open(work(sampling=SamplingParams(max_tokens=400)))
        async with clients(session) as (client, _):
            answer = await client.chat.completions.create(model="m", messages=[USER], tools=[CHAT_TOOL])
            message = answer.choices[0].message
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "there is no such tool"}
            await client.chat.completions.create(model="m", messages=[USER, message, result], tools=[CHAT_TOOL])
        first, second = harness.recorded()
        assert second.prefix == first.interaction


def test_a_chat_template_by_path_replaces_the_models(tmp_path):
    path = tmp_path / "other.jinja"
    path.write_text(TEMPLATES["minimax_m2"])
    chat = family(PLAIN)
    assert apply_template_settings(chat, GatewaySettings(chat_template=str(path))).tools.error == ""
    assert [one.name for one in chat.format.parse(ONE_CALL["minimax_m2"], [CHAT_TOOL]).tool_calls] == ["weather"]
    path.write_text("{% if %}")
    with pytest.raises(
        SetupError, match=r"gateway\.chat_template: .*other\.jinja, line 1: .*; expected a Jinja template"
    ):
        apply_template_settings(chat, GatewaySettings(chat_template=str(path)))
    with pytest.raises(SetupError, match=r"gateway\.chat_template: .*missing\.jinja cannot be read"):
        apply_template_settings(chat, GatewaySettings(chat_template=str(tmp_path / "missing.jinja")))


def test_special_tokens_of_learned_delimiters_are_part_of_answers_and_others_are_not():
    chat = family(TEMPLATES["kimi_k2"])
    apply_template_settings(chat, GatewaySettings())
    text = ONE_CALL["kimi_k2"]
    ids = chat.encode(f"<|im_middle|>{text}")
    assert chat.decode(ids) == text
    answer = chat.format.parse(chat.decode(ids), [CHAT_TOOL])
    assert [(one.id, json.loads(one.arguments)["city"]) for one in answer.tool_calls] == [
        ("functions.weather:0", "Paris")
    ]


async def test_an_openai_client_sees_the_refusal_as_a_bad_request():
    async with gateway(PLAIN) as harness:
        session = await harness.open()
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match=r"gateway\.tool_format"):
                await client.chat.completions.create(model="m", messages=[USER], tools=[CHAT_TOOL])
