"""Formats that write each argument between tags: GLM-4.5 and later; Qwen3-Coder, Qwen3.5 and Nemotron 3.

Strings are plain text without escapes, so a value cannot contain the tag that ends it, nor `</tool_call>`: a call ends
at the first one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from areal_actors.tokenization.tool_parsers.base import DeclaredTools, ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import DECODER, check_depth, check_name
from areal_actors.tokenization.tool_parsers.syntax import (
    CallSyntax,
    IncompleteCall,
    MalformedCall,
    ParsedCalls,
    enclosed_text,
)

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION, END_OF_FUNCTION = "<function=", "</function>"
INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,299})")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,299})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
TYPE_OF_VALUE = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
MAX_SCHEMA_DEPTH = 20
"""Maximum depth of references and alternatives to follow; a schema may refer to itself."""


class Tags(NamedTuple):
    """Tags of a format inside a call's delimiters."""

    call: re.Pattern[str]
    """Matches a whole call; groups: name, arguments."""
    argument: re.Pattern[str]
    """Matches one argument; groups: its name, its value."""
    padding: str | None
    """Characters around an argument's name that are not part of it; None for white space."""
    noun: str
    wrong_call: str
    wrong_argument: str

    def read(self, text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
        """Parse one call."""
        start = at + len(OPENING)
        if text.startswith(OPENING, at):
            body, end = enclosed_text(text, start, CLOSING)
        else:
            start = at
            body, end = unopened_text(text, at)
        call = self.call.fullmatch(body)
        if call is None:
            raise MalformedCall(self.wrong_call, start)
        name = call[1].strip()
        check_name(name, declared, start)
        arguments = arguments_json(self._arguments(call[2].strip(), start), declared.get(name, {}))
        return ParsedCalls(end, (ToolCall(name=name, arguments=arguments),))

    def _arguments(self, text: str, position: int) -> dict[str, str]:
        """Return the unparsed values by name."""
        written: dict[str, str] = {}
        at = 0
        while at < len(text):
            argument = self.argument.match(text, at)
            if argument is None:
                raise MalformedCall(self.wrong_argument, position)
            name = argument[1].strip(self.padding)
            if name in written:
                raise MalformedCall(f"{self.noun} {name!r} occurs twice", position)
            written[name] = argument[2]
            at = argument.end()
        return written


GLM_TAGS = Tags(
    re.compile(r"([^<]*)(.*)", re.DOTALL),
    re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL),
    padding=None,
    noun="argument",
    wrong_call="",
    wrong_argument="expected only <arg_key>KEY</arg_key> and <arg_value>VALUE</arg_value> after its name",
)
QWEN_CODER_TAGS = Tags(
    re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL),
    re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL),
    padding="",
    noun="parameter",
    wrong_call="expected <function=NAME> and </function> right inside its delimiters",
    wrong_argument="expected only <parameter=KEY>, a value and </parameter> inside <function=…>",
)


def unopened_text(text: str, at: int) -> tuple[str, int]:
    """Return a function whose opening delimiter the model left out, and the position after it.

    The position is behind the closing delimiter, if there is one.

    Raises:
        IncompleteCall: the function does not end.
    """
    closing, following = text.find(CLOSING, at), text.find(OPENING, at)
    if closing >= 0 and not 0 <= following < closing:
        return text[at:closing], closing + len(CLOSING)
    body, end = enclosed_text(text, at, END_OF_FUNCTION)
    return body + END_OF_FUNCTION, end


def glm_body(grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the grammar of a name, then keys and values."""
    line = grammar.literal("\n")

    def argument(key: str, schema: object) -> str:
        tagged = grammar.enclose(("<arg_key>", "</arg_key>"), grammar.literal(key))
        opening = grammar.delimiter("<arg_value>")
        return (
            f"{tagged} {line} {opening}"
            f" {value_grammar(grammar, schema, parameters, '</arg_value>', before='', without=CLOSING)} {line}"
        )

    return f"{grammar.literal(f'{name}{chr(10)}')} {arguments_grammar(parameters, argument)}"


def qwen_coder_body(grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the grammar of a function with its parameters; the templates write booleans as Python does."""
    line = grammar.literal("\n")

    def argument(key: str, schema: object) -> str:
        if json_types(schema, parameters) == {"boolean"}:
            value = f'("True" | "False") {line} {grammar.delimiter("</parameter>")}'
        else:
            value = value_grammar(grammar, schema, parameters, "</parameter>", before="\n", without=CLOSING)
        return f"{grammar.literal(f'<parameter={key}>{chr(10)}')} {value} {line}"

    head, end = grammar.literal(f"\n<function={name}>\n"), grammar.literal("</function>\n")
    return f"{head} {arguments_grammar(parameters, argument)} {end}"


def json_types(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a value may have; empty if the schema has none. References are resolved in `root`."""
    if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset([named])
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    types = {TYPE_OF_VALUE[type(value)] for value in values if type(value) in TYPE_OF_VALUE}
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema[key] if isinstance(schema.get(key), list) else ():
            types |= json_types(part, root, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        types |= json_types(resolve_reference(reference, root), root, depth + 1)
    return frozenset(types)


def resolve_reference(reference: str, root: Mapping[str, Any]) -> object:
    """Return the schema at `#/…`; None if there is none."""
    node: object = root
    for step in reference[2:].split("/"):
        node = node.get(step) if isinstance(node, Mapping) else None
    return node


def argument_schemas(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of a tool's arguments by name."""
    properties = parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def value_json(text: str, types: frozenset[str]) -> str:
    """Return a plain-text value as JSON text: of the first of its types that parses, else a string."""
    value = text.strip()
    if "null" in types and value in ("null", "None"):
        return "null"
    if "boolean" in types and value.lower() in ("true", "false"):
        return value.lower()
    if types & {"integer", "number"} and (NUMBER if "number" in types else INTEGER).fullmatch(value):
        return value
    if (
        value[:1] in ("{", "[")
        and is_json(value)
        and ("object" if value[0] == "{" else "array") in (types or {"object", "array"})
    ):
        return value
    return json.dumps(text, ensure_ascii=False)


def is_json(text: str) -> bool:
    """True if the whole text parses as an object or list."""
    try:
        check_depth(text, 0)
        return DECODER.raw_decode(text)[1] == len(text)
    except (ValueError, MalformedCall, IncompleteCall):
        return False


def arguments_json(written: Mapping[str, str], parameters: Mapping[str, Any]) -> str:
    """Return the JSON object of plain-text arguments, in their original order."""
    properties = argument_schemas(parameters)
    members = [
        f"{json.dumps(key, ensure_ascii=False)}: {value_json(text, json_types(properties.get(key), parameters))}"
        for key, text in written.items()
    ]
    return "{" + ", ".join(members) + "}"


def value_grammar(
    grammar: Grammar, schema: object, root: Mapping[str, Any], closing: str, before: str, without: str
) -> str:
    """Return an expression for a value, then `before` and the closing delimiter; text never contains `without`."""
    types = json_types(schema, root)
    end = f"{grammar.literal(before)} {grammar.delimiter(closing)}" if before else grammar.delimiter(closing)
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return f"{alternatives([grammar.literal(value) for value in values])} {end}"
    if not types or "string" in types or not isinstance(schema, Mapping):
        return grammar.until(closing, before=before, without=without)
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return f"{grammar.schema({**definitions, **schema})} {end}"


def arguments_grammar(parameters: Mapping[str, Any], written: Callable[[str, object], str]) -> str:
    """Join the expressions that `written` returns for names and schemas.

    Required ones come once, the others at most once.
    """
    required = parameters.get("required")
    needed = set(required) if isinstance(required, list) else set()
    expressions = {name: written(name, schema) for name, schema in argument_schemas(parameters).items()}
    return " ".join(expression if name in needed else f"({expression})?" for name, expression in expressions.items())


QWEN_CODER = CallSyntax(
    QWEN_CODER_TAGS.read,
    (OPENING, FUNCTION),
    closing=CLOSING,
    in_reasoning=True,
    newlines=2,
    body=qwen_coder_body,
    around_call=(OPENING, CLOSING),
    separator="\n",
)
GLM = QWEN_CODER._replace(openings=(OPENING,), read=GLM_TAGS.read, newlines=1, leading_newlines=1, body=glm_body)
