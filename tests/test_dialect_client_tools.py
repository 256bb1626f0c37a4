"""Tools that the client runs and whose schema the provider knows: functions for the model, items of their own type for
the client."""

from __future__ import annotations

import json

import openai
import pytest
from support.dialect_harness import MESSAGES, RESPONSES, USER, called, serving

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.client_tools import ANTHROPIC_TOOLS, RESPONSES_TOOLS
from areal_actors.messages import ModelResponsePart, ToolCallPart

PIXEL = "data:image/png;base64,aGk="
SHOT = {"output": {"type": "computer_screenshot", "image_url": PIXEL}, "acknowledged_safety_checks": []}
CLICK = {"type": "click", "x": 3, "y": 4, "button": "left"}
CALLS = {
    "computer": ({"actions": [CLICK, {"type": "screenshot"}]}, SHOT),
    "computer_use_preview": (CLICK, SHOT),
    "shell": (
        {"commands": ["ls"], "timeout_ms": 5},
        {"output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    ),
    "local_shell": ({"command": ["ls", "-l"]}, {"output": "a"}),
    "apply_patch": (
        {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"},
        {"status": "completed", "output": "done"},
    ),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bash_20250124", "bash"),
        ("text_editor_20250728", "str_replace_based_edit_tool"),
        ("text_editor_20250124", "str_replace_editor"),
        ("memory_20250818", "memory"),
        ("computer_20251124", "computer"),
    ],
)
def test_anthropics_client_tools_are_functions_with_their_public_schemas(kind, name):
    tool = {
        "type": kind,
        "name": name,
        "cache_control": {"type": "ephemeral"},
        "display_width_px": 800,
        "display_height_px": 600,
    }
    call = called(MESSAGES, tools=[tool], tool_choice={"type": "tool", "name": name})
    (function,) = [one["function"] for one in call.tools]
    known = ANTHROPIC_TOOLS[kind.rpartition("_")[0]]
    assert (function["name"], function["parameters"]) == (name, known.parameters)
    assert "800 x 600" in function["description"]
    assert call.tool_choice == f"function:{name}"


def test_a_client_tool_and_a_function_of_one_name_are_refused():
    tools = [{"type": "bash_20250124", "name": "bash"}, {"name": "bash", "input_schema": {"type": "object"}}]
    with pytest.raises(RequestError, match="same name 'bash'"):
        called(MESSAGES, tools=tools)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", CALLS)
async def test_a_call_reaches_the_openai_client_as_its_item_and_comes_back_with_its_result(kind, stream):
    arguments, result = CALLS[kind]
    tool = RESPONSES_TOOLS[kind]
    name = tool.name
    written = json.dumps(arguments)
    pieces = [
        ToolCallPart(index=0, id="c1", name=name, arguments=written[:5]),
        ToolCallPart(index=0, arguments=written[5:]),
    ]
    whole = ToolCallPart(index=0, id="c1", name=name, arguments=written)

    def script(call):
        if not call.stream:
            return [ModelResponsePart(interaction="i", tool_calls=(whole,), finish_reason="tool_calls", last=True)]
        parts = [ModelResponsePart(interaction="i", tool_calls=(piece,)) for piece in pieces]
        return [*parts, ModelResponsePart(interaction="i", finish_reason="tool_calls", last=True)]

    async with (
        serving(script) as served,
        openai.AsyncOpenAI(base_url=f"{served.root}/v1", api_key="k", max_retries=0) as client,
    ):
        asked = {"model": "m", "input": [USER], "tools": [{"type": kind}]}
        if stream:
            async with client.responses.stream(**asked) as events:
                answer = await events.get_final_response()
        else:
            answer = await client.responses.create(**asked)
        (item,) = answer.output
        assert (item.type, item.call_id) == (tool.item, "c1")
        back = item.model_dump(exclude_none=True)
        if tool.is_list:
            assert back[tool.field] == arguments[tool.field]
        else:
            assert back[tool.field].items() >= arguments.items()
        reply = {"type": f"{tool.item}_output", "call_id": "c1", **result}
        await client.responses.create(model="m", input=[USER, back, reply], tools=[{"type": kind}])
        first, second = served.calls
        assert [one["function"]["name"] for one in first.tools] == [name]
        _, answered, returned = second.messages
        assert json.loads(answered["tool_calls"][0]["function"]["arguments"]) == arguments
        assert (returned["role"], returned["tool_call_id"]) == ("tool", "c1")


@pytest.mark.parametrize(
    "output",
    [SHOT["output"], "text", [{"type": "input_text", "text": "text"}], {"type": "input_image", "image_url": PIXEL}],
)
def test_the_result_of_a_computer_is_an_image_or_text(output):
    call = {
        "type": "computer_call",
        "id": "i",
        "call_id": "c",
        "status": "completed",
        "pending_safety_checks": [],
        "action": CLICK,
    }
    reply = {"type": "computer_call_output", "call_id": "c", "output": output}
    result = called(RESPONSES, input=[USER, call, reply]).messages[-1]
    assert result["content"] == ("text" if "text" in str(output) else [{"type": "image", "url": PIXEL}])


def test_a_computer_has_the_size_of_its_screen_and_may_be_chosen():
    tool = {"type": "computer_use_preview", "display_width": 800, "display_height": 600, "environment": "browser"}
    call = called(RESPONSES, tools=[tool], tool_choice={"type": "computer_use_preview"})
    assert "800 x 600" in call.tools[0]["function"]["description"]
    assert call.tool_choice == "function:computer"


def test_an_item_without_its_action_is_refused_by_name():
    with pytest.raises(RequestError) as refused:
        called(RESPONSES, input=[USER, {"type": "shell_call", "call_id": "c"}])
    assert refused.value.field == "input[1].action"
