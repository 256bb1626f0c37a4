"""Which format a model writes, by the marks that stand in its chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from areal_actors.answer_formats.base import AnswerFormat
from areal_actors.answer_formats.deepseek import DeepSeekCalls
from areal_actors.answer_formats.generic_json import GenericJsonCalls
from areal_actors.answer_formats.glm import GlmCalls
from areal_actors.answer_formats.gpt_oss import GptOss
from areal_actors.answer_formats.hermes import HermesCalls
from areal_actors.answer_formats.llama3 import Llama3Calls
from areal_actors.answer_formats.mistral import REASONING as MISTRAL_REASONING
from areal_actors.answer_formats.mistral import MistralCalls
from areal_actors.answer_formats.plain import NoCalls
from areal_actors.answer_formats.pythonic import PythonicCalls
from areal_actors.answer_formats.qwen_coder import QwenCoderCalls
from areal_actors.answer_formats.reading import MarkedFormat
from areal_actors.answer_formats.syntax import THINK, ReasoningMarks
from areal_actors.errors import RecipeError

Reasoning = Sequence[ReasoningMarks]

FORMATS: dict[str, Callable[[Reasoning], AnswerFormat]] = {
    "deepseek": lambda reasoning: MarkedFormat("deepseek", DeepSeekCalls(fenced=False), special_tokens=True, reasoning=reasoning),
    "deepseek_v3": lambda reasoning: MarkedFormat("deepseek_v3", DeepSeekCalls(fenced=True), special_tokens=True, reasoning=reasoning),
    "generic_json": lambda reasoning: MarkedFormat("generic_json", GenericJsonCalls(), special_tokens=False, reasoning=reasoning),
    "glm": lambda reasoning: MarkedFormat("glm", GlmCalls(), special_tokens=False, reasoning=reasoning),
    "gpt_oss": lambda _: GptOss(),
    "hermes": lambda reasoning: MarkedFormat("hermes", HermesCalls(), special_tokens=False, reasoning=reasoning),
    "llama3": lambda reasoning: MarkedFormat("llama3", Llama3Calls(), special_tokens=True, reasoning=reasoning),
    "mistral": lambda reasoning: MarkedFormat("mistral", MistralCalls(), special_tokens=True, reasoning=reasoning),
    "none": lambda reasoning: MarkedFormat("none", NoCalls(), special_tokens=False, reasoning=reasoning),
    "pythonic": lambda reasoning: MarkedFormat("pythonic", PythonicCalls(), special_tokens=True, reasoning=reasoning),
    "qwen_coder": lambda reasoning: MarkedFormat("qwen_coder", QwenCoderCalls(), special_tokens=False, reasoning=reasoning),
}

MARKS = (
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
"""Formats and what stands in their templates; the first whose marks all do is the one."""

KNOWS_TOOLS = re.compile(r"\{[%{][^}]*\btools\b")


def detected(chat_template: str) -> str:
    """Name of the format that a model with this template writes; `none` when the template knows no tools."""
    for name, marks in MARKS:
        if all(mark in chat_template for mark in marks):
            return name
    return "generic_json" if KNOWS_TOOLS.search(chat_template) else "none"


def format_named(name: str) -> AnswerFormat:
    """The format of this name, which takes `<think>` and its like for reasoning wherever an answer begins with it.

    Raises:
        RecipeError: there is no such format.
    """
    return built(name, MISTRAL_REASONING if name == "mistral" else THINK)


def format_of(chat_template: str) -> AnswerFormat:
    """The format that a model with this template writes, and only the reasoning marks that the template knows.

    Where a template has none, `<think>` is text like any other: rendered as reasoning it would be lost from the next prompt.
    """
    known = tuple(marks for marks in MISTRAL_REASONING if marks.closing in chat_template)
    return built(detected(chat_template), known)


def built(name: str, reasoning: Reasoning) -> AnswerFormat:
    """A format with these reasoning marks.

    Raises:
        RecipeError: there is no such format.
    """
    if name not in FORMATS:
        raise RecipeError(
            f"there is no answer format {name!r}: choose one of {', '.join(FORMATS)}, or leave it out to go by the chat template"
        )
    return FORMATS[name](reasoning)
