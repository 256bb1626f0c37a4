"""Names why a tool call that the model wrote does not reach its agent as one.

A call in another form than the chat template's is text to the gateway. It is recognised here by the name of a declared
tool in a form that models are known to write, so that it is counted with its cause; nothing is read from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.tokenization.tool_parsers.base import Answer, ToolCall, ToolDefinition
from areal_actors.tokenization.tool_parsers.tagged_formats import json_types

LONGEST_SEARCHED = 20_000
"""Characters of an answer, from its end, in which unread calls are searched."""
JSON_NAME = r'\{{\s*"(?:name|tool|tool_name|function|action)"\s*:\s*"{name}"'
FORMS: Sequence[tuple[str, str]] = (
    ("tools_tag", r"<tools?>\s*(?:\[\s*)?" + JSON_NAME),
    ("function_tag", r"<function[=\s(](?:name=)?\"?{name}\b|<function_calls?>[^<]{{0,40}}\b{name}\b"),
    ("invoke_tag", r'<(?:\w+:)?invoke\s+name="{name}"'),
    ("tool_call_tag", r"<\|?tool_calls?(?:_begin|_start)?\|?>[^<]{{0,200}}\b{name}\b"),
    ("fenced_json", r"```[A-Za-z_]*\s*(?:\[\s*)?" + JSON_NAME),
    ("bare_json", JSON_NAME),
    ("fenced_python", r"```[A-Za-z_]*\s*(?:\[\s*)?(?:print\()?{name}\("),
    ("python_call", r"(?m:^)\s*\[?\s*{name}\((?=[\w\s]*=|\s*['\"{{\[\)])"),
    ("react", r"(?i:\baction\s*:\s*)`?{name}\b"),
    ("name_tag", r"<{name}>.{{0,2000}}</{name}>"),
)
"""Cause and pattern of forms in which models write calls, in the order in which they are tried; `{name}` is that of a
tool."""
SENTENCES: Mapping[str, str] = {
    "tools_tag": "inside <tools>",
    "function_tag": "in a <function> tag",
    "invoke_tag": "in an <invoke> tag",
    "tool_call_tag": "in <tool_call> without its form",
    "fenced_json": "as JSON in a code fence",
    "bare_json": "as bare JSON",
    "fenced_python": "as Python in a code fence",
    "python_call": "as a Python call",
    "react": "after Action:",
    "name_tag": "in a tag of its name",
}
_CAUSES = (
    (re.compile(r"^a tool call does not parse"), "malformed"),
    (re.compile(r"^no tool is named"), "undeclared"),
    (re.compile(r"^tool_choice does not allow"), "not_allowed"),
    (re.compile(r"^\d+ tool calls although"), "not_parallel"),
    (re.compile(r"^argument .* of the wrong type"), "wrong_type"),
    (re.compile(r"is not read: (\w+)"), ""),
)
OTHER = "other"
CAUSES = (
    "malformed",
    "undeclared",
    "not_allowed",
    "not_parallel",
    "wrong_type",
    *SENTENCES,
    *(f"{form}_in_reasoning" for form in SENTENCES),
    OTHER,
)
"""Names of all causes, as in the metrics `tool_call_error/NAME`."""


def cause_of(error: str) -> str:
    """Returns the name of the cause that a `tool_call_error` states; empty if it is empty."""
    if not error:
        return ""
    for pattern, name in _CAUSES:
        if match := pattern.search(error):
            return name or match[1]
    return OTHER


def find_unread_call(answer: Answer, tools: Sequence[ToolDefinition], form: str) -> str:
    """Returns the sentence about a call that an answer without calls contains in another form than `form`.

    Empty if there is none.
    """
    names = [tool["function"]["name"] for tool in tools]
    if answer.tool_calls or not names:
        return ""
    for whole, in_reasoning in ((answer.text, False), (answer.reasoning, True)):
        text = whole[-LONGEST_SEARCHED:]
        for cause, pattern in FORMS if any(name in text for name in names) else ():
            for name in names:
                if name in text and re.search(pattern.format(name=re.escape(name)), text, re.DOTALL):
                    where = f"{SENTENCES[cause]}{' in the reasoning' if in_reasoning else ''}"
                    cause_name = f"{cause}_in_reasoning" if in_reasoning else cause
                    return f"a call of {name!r} {where} is not read: {cause_name}; the template's form is {form}"
    return ""


def find_wrong_type(calls: Sequence[ToolCall], tools: Sequence[ToolDefinition]) -> str:
    """Returns the sentence about an argument that is text, such as a Python list, where its schema has no text."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    for call in calls:
        properties = schemas.get(call.name, {}).get("properties")
        arguments: Any = _decode(call.arguments)
        if not isinstance(properties, Mapping) or not isinstance(arguments, dict):
            continue
        for key, value in arguments.items():
            types = json_types(properties.get(key), schemas[call.name])
            if isinstance(value, str) and types and types <= {"array", "object"}:
                return (
                    f"argument {key!r} of {call.name!r} is of the wrong type: text, where its schema has"
                    f" {' or '.join(sorted(types))}"
                )
    return ""


def _decode(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
