import json
import os
from pathlib import Path

import pytest
from support.answer_samples import TOOLS

from areal_actors.embedded.embedded_model import CHAT_TEMPLATE
from areal_actors.tokenization.chat_template import compile_template
from areal_actors.tokenization.tool_parsers.families import detect_format, format_for_template

FOLDER = Path(
    os.environ.get("AREAL_CHAT_TEMPLATES", Path(__file__).parent.parent.parent / "shared" / "data" / "chat_templates")
)
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
"""The templates of real models, where they are at hand; their tests are collected only then."""

FORMAT_OF_TEMPLATE = {
    "cohere2": "none",
    "deepseekv3": "deepseek_v3",
    "gemma3": "none",
    "glm4moe": "glm",
    "gptoss": "gpt_oss",
    "lfm2": "pythonic",
    "llama3": "none",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
    "nemotron_3_nano": "qwen_coder",
    "phi3_5": "none",
    "qwen2_5": "hermes",
    "qwen2_5_vl": "none",
    "qwen3": "hermes",
    "qwen3_5_nothink": "qwen_coder",
    "qwen3_5_think": "qwen_coder",
    "qwen3_instruct_2507": "hermes",
}
ENDS = (
    "<|im_end|>\n",
    "<|im_end|>",
    "<|eot_id|>",
    "<｜end▁of▁sentence｜>",
    "<|call|>",
    "<|return|>",
    "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
)
ENDS = (*ENDS, "<end_of_turn>\n", "<|end|>\n")
"""End of a turn: its first token stops the completion."""

SINGLE_CALL = ("llama3", "gpt_oss")
"""Their templates render one call and no text beside it."""

WEATHER_CALL = ("weather", {"city": 'Zürich "Nord"\nline two', "days": 3, "exact": True})
SEARCH_CALL = (
    "search",
    {"query": "a < b && c", "filters": {"since": 2020, "deep": {"x": [1, 2.5, None]}}, "tags": ["x", "y"]},
)
CASES = {
    "text": ("", "The answer is 4.", []),
    "lines": ("", 'One.\n\nTwo: {"a": 1}.', []),
    "thought": ("Two and two.\nFour.", "The answer is 4.", []),
    "call": ("", "", [WEATHER_CALL]),
    "text and call": ("", "Let me look.", [WEATHER_CALL]),
    "thought and call": ("I should look.", "", [SEARCH_CALL]),
    "calls": ("", "", [WEATHER_CALL, SEARCH_CALL]),
    "everything": ("I should look.", "Let me look.", [WEATHER_CALL, SEARCH_CALL, ("ping", {})]),
}


def message_of(reasoning, text, calls, *, text_arguments, thinks):
    message = {"role": "assistant", "content": text}
    if thinks:
        message |= {"reasoning_content": reasoning, "thinking": reasoning}
    if calls:
        functions = [
            {"name": name, "arguments": json.dumps(arguments) if text_arguments else arguments}
            for name, arguments in calls
        ]
        message["tool_calls"] = [
            {"id": f"call_{at}", "type": "function", "function": function} for at, function in enumerate(functions)
        ]
    return message


def rendered(template, message, *, tools, **kwargs):
    """Prompt, and the completion that makes the prompt and this message."""
    user = {"role": "user", "content": "Well?"}
    variables = {"tools": list(TOOLS) if tools else None, "bos_token": "", "eos_token": "", **kwargs}
    prompt = compile_template(template).render(messages=[user], add_generation_prompt=True, **variables)
    whole = compile_template(template).render(messages=[user, message], add_generation_prompt=False, **variables)
    return prompt, whole


def faithful_cases():
    for family, template in TEMPLATES.items():
        name = FORMAT_OF_TEMPLATE[family]
        for case, (reasoning, text, calls) in CASES.items():
            too_many = name in SINGLE_CALL and (len(calls) > 1 or (calls and text))
            renders_no_calls = name in ("none", "pythonic") and calls
            renders_no_thoughts = reasoning and "reasoning_content" not in template and name != "gpt_oss"
            if not (too_many or renders_no_calls or renders_no_thoughts):
                yield pytest.param(template, reasoning, text, calls, id=f"{family}-{case}")


@pytest.mark.parametrize(("template", "reasoning", "text", "calls"), list(faithful_cases()))
def test_a_parsed_completion_renders_as_it_was_sampled(template, reasoning, text, calls):
    text_arguments = detect_format(template) == "deepseek_v3"
    thinks = "reasoning_content" in template or bool(reasoning)
    sampled = message_of(reasoning, text, calls, text_arguments=text_arguments, thinks=thinks)
    prompt, whole = rendered(template, sampled, tools=bool(calls), enable_thinking=bool(reasoning))
    # Where nothing is thought, some templates render an empty thought behind a prompt that has none.
    pairs = enumerate(zip(prompt, whole, strict=False))
    shared = whole[: next((at for at, (one, other) in pairs if one != other), len(prompt))].removesuffix("<")
    end = next((end for end in ENDS if whole.endswith(end)), "")
    completion = whole[len(shared) :].removesuffix(end)

    answer = format_for_template(template).parse(
        completion, TOOLS if calls else (), in_reasoning=shared.rstrip().endswith("<think>")
    )

    assert answer.tool_call_error == ""
    assert (answer.reasoning, answer.text) == (reasoning, text)
    assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == [
        (name, arguments) for name, arguments in calls
    ]
    read_calls = [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]
    again = message_of(answer.reasoning, answer.text, read_calls, text_arguments=text_arguments, thinks=thinks)
    assert rendered(template, again, tools=bool(calls), enable_thinking=bool(reasoning))[1] == whole


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_format_is_recognised_by_the_delimiters_in_the_template(family):
    assert detect_format(TEMPLATES[family]) == FORMAT_OF_TEMPLATE[family]
    assert format_for_template(TEMPLATES[family]).name == FORMAT_OF_TEMPLATE[family]


def test_the_embedded_model_writes_hermes():
    assert detect_format(CHAT_TEMPLATE) == "hermes"
