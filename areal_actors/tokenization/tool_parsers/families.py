"""Selects a model's answer format by the delimiters in its chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping

from areal_actors.core.installed_parts import installed_parts
from areal_actors.tokenization.tool_parsers.base import AnswerFormat
from areal_actors.tokenization.tool_parsers.frames import frame_of
from areal_actors.tokenization.tool_parsers.gpt_oss import GptOss
from areal_actors.tokenization.tool_parsers.json_formats import (
    DEEPSEEK,
    DEEPSEEK_V3,
    GENERIC_JSON,
    HERMES,
    LLAMA3,
    MISTRAL,
)
from areal_actors.tokenization.tool_parsers.pythonic import PYTHON_LINES, PYTHONIC
from areal_actors.tokenization.tool_parsers.stream_parser import DelimitedFormat
from areal_actors.tokenization.tool_parsers.syntax import KNOWN_REASONING, CallSyntax, ReasoningDelimiters
from areal_actors.tokenization.tool_parsers.tagged_formats import GLM, QWEN_CODER

FORMATS: Mapping[str, CallSyntax | GptOss] = {
    "deepseek": DEEPSEEK,
    "deepseek_v3": DEEPSEEK_V3,
    "generic_json": GENERIC_JSON,
    "glm": GLM,
    "gpt_oss": GptOss(),
    "hermes": HERMES,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "none": CallSyntax(),
    "python_lines": PYTHON_LINES,
    "pythonic": PYTHONIC,
    "qwen_coder": QWEN_CODER,
}
AUTO, LEARNED = "auto", "learned"

TEMPLATE_DELIMITERS = (
    ("gpt_oss", ("<|channel|>", "<|message|>")),
    ("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek", ("<｜tool▁call▁begin｜>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("glm", ("<arg_key>",)),
    ("qwen_coder", ("<function=", "<parameter=")),
    ("python_lines", ("<function_calls>", "</function_calls>")),
    ("pythonic", ("<|tool_list_start|>",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("hermes", ("<tool_call>",)),
    ("llama3", ("<|start_header_id|>", '"parameters": ')),
)
"""Formats and delimiters in their templates; the first format whose delimiters all occur is chosen."""

TEMPLATE_USES_TOOLS = re.compile(r"\{[%{][^}]*\btools\b")


def format_names() -> tuple[str, ...]:
    """Return the values of the setting `gateway.tool_format`: our formats, and those of other distributions."""
    return (AUTO, LEARNED, *FORMATS, *installed_parts("tool_format"))


def detect_format(chat_template: str) -> str:
    """Return the name of the format that a model with this template writes.

    `none` if the template does not support tools.
    """
    for name, delimiters in TEMPLATE_DELIMITERS:
        if all(delimiter in chat_template for delimiter in delimiters):
            return name
    return "generic_json" if TEMPLATE_USES_TOOLS.search(chat_template) else "none"


def format_for_template(chat_template: str) -> AnswerFormat:
    """Return the format that a model with this template writes, with the template's reasoning delimiters only.

    If it contains none, `<think>` is plain text: parsed as reasoning it would be missing from the next prompt.
    """
    return format_of(detect_format(chat_template), chat_template)


def format_of(name: str, chat_template: str, syntax: CallSyntax | None = None) -> AnswerFormat:
    """Return a format as answers with this template have it: one of `format_names()`, or with a syntax of its own."""
    parser = syntax or (FORMATS[name] if name in FORMATS else installed_parts("tool_format")[name].load())
    reasoning, frame = reasoning_of(chat_template), frame_of(chat_template)
    return DelimitedFormat(name, parser, reasoning, frame) if isinstance(parser, CallSyntax) else parser


def reasoning_of(chat_template: str) -> tuple[ReasoningDelimiters, ...]:
    """Return the known delimiters of reasoning that a template contains."""
    frame = frame_of(chat_template)
    return (
        (frame.reasoning,)
        if frame
        else tuple(delimiters for delimiters in KNOWN_REASONING if delimiters.closing in chat_template)
    )
