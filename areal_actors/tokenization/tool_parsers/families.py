"""Selects a model's answer format by the delimiters in its chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from areal_actors.core.errors import RecipeError
from areal_actors.tokenization.tool_parsers.base import AnswerFormat
from areal_actors.tokenization.tool_parsers.deepseek import DeepSeekCalls
from areal_actors.tokenization.tool_parsers.generic_json import GenericJsonCalls
from areal_actors.tokenization.tool_parsers.glm import GlmCalls
from areal_actors.tokenization.tool_parsers.gpt_oss import GptOss
from areal_actors.tokenization.tool_parsers.hermes import HermesCalls
from areal_actors.tokenization.tool_parsers.llama3 import Llama3Calls
from areal_actors.tokenization.tool_parsers.mistral import REASONING as MISTRAL_REASONING
from areal_actors.tokenization.tool_parsers.mistral import MistralCalls
from areal_actors.tokenization.tool_parsers.plain import NoCalls
from areal_actors.tokenization.tool_parsers.pythonic import PythonicCalls
from areal_actors.tokenization.tool_parsers.qwen_coder import QwenCoderCalls
from areal_actors.tokenization.tool_parsers.stream_parser import DelimitedFormat
from areal_actors.tokenization.tool_parsers.syntax import THINK, ReasoningDelimiters

Reasoning = Sequence[ReasoningDelimiters]

FORMATS: dict[str, Callable[[Reasoning], AnswerFormat]] = {
    "deepseek": lambda reasoning: DelimitedFormat("deepseek", DeepSeekCalls(fenced=False), special_tokens=True, reasoning=reasoning),
    "deepseek_v3": lambda reasoning: DelimitedFormat("deepseek_v3", DeepSeekCalls(fenced=True), special_tokens=True, reasoning=reasoning),
    "generic_json": lambda reasoning: DelimitedFormat("generic_json", GenericJsonCalls(), special_tokens=False, reasoning=reasoning),
    "glm": lambda reasoning: DelimitedFormat("glm", GlmCalls(), special_tokens=False, reasoning=reasoning),
    "gpt_oss": lambda _: GptOss(),
    "hermes": lambda reasoning: DelimitedFormat("hermes", HermesCalls(), special_tokens=False, reasoning=reasoning),
    "llama3": lambda reasoning: DelimitedFormat("llama3", Llama3Calls(), special_tokens=True, reasoning=reasoning),
    "mistral": lambda reasoning: DelimitedFormat("mistral", MistralCalls(), special_tokens=True, reasoning=reasoning),
    "none": lambda reasoning: DelimitedFormat("none", NoCalls(), special_tokens=False, reasoning=reasoning),
    "pythonic": lambda reasoning: DelimitedFormat("pythonic", PythonicCalls(), special_tokens=True, reasoning=reasoning),
    "qwen_coder": lambda reasoning: DelimitedFormat("qwen_coder", QwenCoderCalls(), special_tokens=False, reasoning=reasoning),
}

TEMPLATE_DELIMITERS = (
    ("gpt_oss", ("<|channel|>", "<|message|>")),
    ("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek", ("<｜tool▁call▁begin｜>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("glm", ("<arg_key>",)),
    ("qwen_coder", ("<function=", "<parameter=")),
    ("pythonic", ("<|tool_list_start|>",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("hermes", ("<tool_call>",)),
    ("llama3", ("<|start_header_id|>", '"parameters": ')),
)
"""Formats and delimiters in their templates; the first format whose delimiters all occur is chosen."""

TEMPLATE_USES_TOOLS = re.compile(r"\{[%{][^}]*\btools\b")


def detect_format(chat_template: str) -> str:
    """Return the name of the format that a model with this template writes; `none` if the template does not support tools."""
    for name, delimiters in TEMPLATE_DELIMITERS:
        if all(delimiter in chat_template for delimiter in delimiters):
            return name
    return "generic_json" if TEMPLATE_USES_TOOLS.search(chat_template) else "none"


def format_by_name(name: str) -> AnswerFormat:
    """Return the format of this name; it parses `<think>` or `<thinking>` at the start of any answer as reasoning.

    Raises:
        RecipeError: no format has this name.
    """
    return build_format(name, MISTRAL_REASONING if name == "mistral" else THINK)


def format_for_template(chat_template: str) -> AnswerFormat:
    """Return the format that a model with this template writes, with only the reasoning delimiters that the template contains.

    If it contains none, `<think>` is plain text: parsed as reasoning it would be missing from the next prompt.
    """
    known = tuple(delimiters for delimiters in MISTRAL_REASONING if delimiters.closing in chat_template)
    return build_format(detect_format(chat_template), known)


def build_format(name: str, reasoning: Reasoning) -> AnswerFormat:
    """Return a format with these reasoning delimiters.

    Raises:
        RecipeError: no format has this name.
    """
    if name not in FORMATS:
        raise RecipeError(
            f"there is no answer format {name!r}: choose one of {', '.join(FORMATS)}, or leave it out to detect it from the chat template"
        )
    return FORMATS[name](reasoning)
