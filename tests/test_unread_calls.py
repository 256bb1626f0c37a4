"""Tool calls in forms that models write and templates do not: read as other servers read them, or named with a cause
and counted."""

from __future__ import annotations

import pytest
from support.conversation_families import family
from support.framework_harness import FINAL, clients, opened_chat_gateway
from support.samples import work
from test_token_fidelity import FILES

from areal_actors.core.values import SamplingParams, unpack_ids
from areal_actors.gateway.unread_calls import CAUSES, cause_of, find_unread_call, find_wrong_type
from areal_actors.tokenization.tool_parsers.families import format_for_template

pytestmark = pytest.mark.skipif(
    not FILES, reason="there are no chat templates; set AREAL_CHAT_TEMPLATES to a folder of .jinja files"
)
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in FILES}
PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "paths": {"type": "array", "items": {"type": "string"}}},
}
TOOL = {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": PARAMETERS}}
JSON = '{"name": "bash", "arguments": {"command": "ls"}}'
CODER = "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>"
HERMES = f"<tool_call>\n{JSON}\n</tool_call>"

READ = [
    ("qwen3_5_nothink", f"{CODER}\n</tool_call>", "", "", 1),
    ("qwen3_5_nothink", f"I look.\n{CODER}", "", "I look.", 1),
    ("qwen3_5_nothink", f"{CODER}\n</tool_call>\n<tool_call>\n{CODER}\n</tool_call>", "", "", 2),
    ("qwen3_5_nothink", f"{CODER}\n<tool_call>\n{CODER}\n</tool_call>", "", "", 2),
    ("qwen3_5_think", f"I need to look.\n<tool_call>\n{CODER}\n</tool_call>", "I need to look.", "", 1),
    ("qwen3_5_think", f"I need to look.\n{CODER}\n</tool_call>", "I need to look.", "", 1),
    ("qwen3", f"<think>\nlook\n{HERMES}", "look", "", 1),
    ("qwen3", f"<think>\nlook\n{HERMES}\n{HERMES}", "look", "", 2),
    ("qwen3", f"<think>\nlook\n{HERMES}\n</think>", "look", "", 1),
    (
        "glm4moe",
        "<think>x\n<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
        "x",
        "",
        1,
    ),
    ("qwen3", f"<think>\nmaybe {HERMES}?\n</think>\n\nNo.", f"maybe {HERMES}?", "No.", 0),
    ("qwen3", f"<think>\na <tool_call> is needed\n</think>\n\n{HERMES}", "a <tool_call> is needed", "", 1),
    ("qwen3", "<think>\na <tool_call> is needed", "a <tool_call> is needed", "", 0),
]


@pytest.mark.parametrize(("template", "text", "reasoning", "rest", "calls"), READ)
def test_a_call_in_an_unclosed_reasoning_or_without_its_opening_is_a_call_however_it_is_streamed(
    template, text, reasoning, rest, calls
):
    form = format_for_template(TEMPLATES[template])
    opened = template.endswith("5_think")
    answer = form.parse(text, [TOOL], in_reasoning=opened)
    assert (answer.reasoning, answer.text, len(answer.tool_calls)) == (reasoning, rest, calls)
    assert {(call.name, call.arguments) for call in answer.tool_calls} <= {("bash", '{"command": "ls"}')}
    for size in (1, 5, 40):
        stream = form.stream([TOOL], in_reasoning=opened)
        deltas = [delta for start in range(0, len(text), size) for delta in stream.push(text[start : start + size])]
        deltas = [*deltas, *stream.finish()[0]]
        assert "".join(delta.reasoning for delta in deltas) == reasoning
        assert "".join(delta.text for delta in deltas) == rest
        assert sum(delta.call is not None for delta in deltas) == calls


@pytest.mark.parametrize(
    ("template", "text", "cause"),
    [
        ("qwen3", f"<tools>\n{JSON}\n</tools>", "tools_tag"),
        ("qwen3", f"I look.\n```json\n{JSON}\n```", "fenced_json"),
        ("qwen3", f"I look.\n{JSON}", "bare_json"),
        ("qwen3", '{"function": "bash", "parameters": {}}', "bare_json"),
        ("qwen3", CODER, "function_tag"),
        ("qwen3", '<invoke name="bash">\n</invoke>', "invoke_tag"),
        ("qwen3", "```python\nbash(command='ls')\n```", "fenced_python"),
        ("qwen3", "[bash(command='ls')]", "python_call"),
        ("qwen3", "Thought: look.\nAction: bash\nAction Input: ls", "react"),
        ("qwen3", "<bash>ls</bash>", "name_tag"),
        ("qwen3", f"<think>\nlook\n{JSON}", "bare_json_in_reasoning"),
        ("qwen3", f"<think>\n{HERMES}\n</think>\n\nDone.", "tool_call_tag_in_reasoning"),
        ("qwen3", "<tool_call>\n{bash}\n</tool_call>", "malformed"),
        (
            "qwen3_5_nothink",
            "<tool_call>\n<function=bash>\n<parameter=paths>\n['a', 'b']\n</parameter>\n</function>\n</tool_call>",
            "wrong_type",
        ),
        ("qwen3", "I will use bash (a shell) and then {bash: 1}; run `bash(...)` yourself.", ""),
        ("qwen3", HERMES, ""),
    ],
)
def test_a_call_in_another_form_is_named_with_its_cause(template, text, cause):
    form = format_for_template(TEMPLATES[template])
    answer = form.parse(text, [TOOL])
    error = (
        answer.tool_call_error
        or find_wrong_type(answer.tool_calls, [TOOL])
        or find_unread_call(answer, [TOOL], form.name)
    )
    assert cause_of(error) == cause
    assert cause in {"", *CAUSES}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_inside_of_the_reasoning_reaches_the_client_and_the_next_prompt_extends_its_exact_tokens(stream):
    chat = family(TEMPLATES["qwen3_5_think"])
    written = f"I need to look.\n<tool_call>\n{CODER}\n</tool_call>"
    run = work(sampling=SamplingParams(max_tokens=400))
    async with opened_chat_gateway(chat=chat) as harness:
        ids = [number for number in chat.encode(written) if number not in chat.stop_ids]
        harness.script.lines = [[*ids, chat.stop_ids[0]], FINAL]
        session = await harness.open(run)
        messages = [{"role": "user", "content": "What is here?"}]
        async with clients(session) as (client, _):
            if stream:
                async with client.chat.completions.stream(model="m", messages=messages, tools=[TOOL]) as chunks:
                    message = (await chunks.get_final_completion()).choices[0].message
            else:
                message = (
                    (await client.chat.completions.create(model="m", messages=messages, tools=[TOOL]))
                    .choices[0]
                    .message
                )
            assert [call.function.name for call in message.tool_calls] == ["bash"]
            echoed = {**message.model_dump(exclude_none=True), "content": ""}
            echoed["tool_calls"] = [
                {"id": call.id, "type": "function", "function": call.function.model_dump(include={"name", "arguments"})}
                for call in message.tool_calls
            ]
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a b"}
            await client.chat.completions.create(model="m", messages=[*messages, echoed, result], tools=[TOOL])
        trajectory = await harness.trajectory(session, run=run)
        first, second = trajectory.interactions
        assert first.completion.ids_array().tolist() == [*ids, chat.stop_ids[0]]
        assert second.prefix == first.id
        assert harness.script.prompts[1] == [
            *harness.script.prompts[0],
            *first.completion.ids_array().tolist(),
            *unpack_ids(second.prompt_suffix),
        ]


async def test_a_call_in_another_form_is_recorded_with_its_cause_in_the_trajectory():
    chat = family(TEMPLATES["qwen3"])
    run = work(sampling=SamplingParams(max_tokens=400))
    async with opened_chat_gateway(chat=chat) as harness:
        harness.script.lines = [[*chat.encode(f"<tools>\n{JSON}\n</tools>"), chat.stop_ids[0]]]
        session = await harness.open(run)
        async with clients(session) as (client, _):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}], tools=[TOOL])
        trajectory = await harness.trajectory(session, run=run)
        assert [call.call_problem for call in trajectory.interactions] == ["tools_tag"]
