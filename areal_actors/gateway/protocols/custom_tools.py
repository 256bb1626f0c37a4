"""Custom tools of OpenAI's protocols, which take free text.

For the model they are functions with one argument, `input`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from areal_actors.gateway.protocols.base import JSON
from areal_actors.gateway.protocols.fields import RequestStruct, Text

INPUT = "input"
"""The argument of a custom tool."""


class CustomTextFormat(RequestStruct, tag_field="type", tag="text"):
    """Any text."""


class InputGrammar(RequestStruct):
    """A grammar; the model reads it, its output is not constrained by it."""

    syntax: Text
    definition: str


class GrammarFormat(InputGrammar, tag_field="type", tag="grammar"):
    """Text that follows a grammar."""


class NestedGrammarFormat(RequestStruct, tag_field="type", tag="grammar"):
    """Text that follows a grammar, as chat completions have it."""

    grammar: InputGrammar


CustomFormat = CustomTextFormat | GrammarFormat
NestedFormat = CustomTextFormat | NestedGrammarFormat


def custom_parameters() -> dict[str, Any]:
    """Return the schema of a custom tool's arguments."""
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def custom_description(description: str | None, form: CustomFormat | NestedFormat | None) -> str:
    """Return the description of a custom tool; a grammar for its input is part of it."""
    grammar = (
        form.grammar if isinstance(form, NestedGrammarFormat) else form if isinstance(form, InputGrammar) else None
    )
    text = description or ""
    if grammar is not None:
        text += f"\n\nThe input follows this grammar ({grammar.syntax}):\n{grammar.definition}"
    return text.strip()


def custom_arguments(text: str) -> str:
    """Return the arguments of a custom tool's call, from its input."""
    return JSON.encode({INPUT: text}).decode()


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool's call; arguments of another form are returned as they are."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) and len(value) == 1 else None
    return text if isinstance(text, str) else arguments


def is_complete(arguments: str) -> bool:
    """Return True if the arguments of a call that is being sampled are a whole object."""
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
