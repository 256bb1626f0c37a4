"""LFM2: a list of Python calls, `[name(key=value, …), …]`, between two delimiters; values are Python literals or JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from areal_actors.tokenization.tool_parsers.base import DeclaredTools, ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar
from areal_actors.tokenization.tool_parsers.json_calls import MAX_DEPTH, check_declared
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax, MalformedCall, ParsedCalls, enclosed_text
from areal_actors.tokenization.tool_parsers.tagged_formats import argument_schemas

DELIMITERS = ("<|tool_call_start|>", "<|tool_call_end|>")
JSON_NAMES = {"true": True, "false": False, "null": None}


def read_pythonic(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse the list; one call that does not parse makes the whole list text."""
    start = at + len(DELIMITERS[0])
    written, end = enclosed_text(text, start, DELIMITERS[1])
    calls = []
    for call in _parse_calls(written.strip(), start):
        name = ast.unparse(call.func)
        check_declared(name, declared, start)
        calls.append(ToolCall(name=name, arguments=_keyword_arguments_json(call, start)))
    return ParsedCalls(end, tuple(calls))


def _parse_calls(text: str, position: int) -> list[ast.Call]:
    if text.count("(") + text.count("[") + text.count("{") > MAX_DEPTH * 10:
        raise MalformedCall(f"it has more than {MAX_DEPTH * 10} brackets", position)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedCall("it is not a list of Python calls", position) from error
    if not isinstance(tree, ast.List) or not tree.elts:
        raise MalformedCall("expected a list of Python calls between its delimiters", position)
    calls = [item for item in tree.elts if isinstance(item, ast.Call) and isinstance(item.func, ast.Name | ast.Attribute) and not item.args]
    if len(calls) < len(tree.elts):
        raise MalformedCall("expected calls with keyword arguments only", position)
    return calls


def _keyword_arguments_json(call: ast.Call, position: int) -> str:
    """Return the arguments as a JSON object, in their original order."""
    names = {keyword.arg for keyword in call.keywords}
    if None in names or len(names) < len(call.keywords):
        raise MalformedCall("an argument has no name, or occurs twice", position)
    try:
        values = {str(keyword.arg): _literal_value(keyword.value) for keyword in call.keywords}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise MalformedCall("its arguments are not literals that JSON can represent", position) from error


def _literal_value(node: ast.expr | None, depth: int = 0) -> Any:
    """Return the value of a Python literal, which may contain JSON's `true`, `false` and `null`; raises ValueError."""
    if depth <= MAX_DEPTH:
        match node:
            case ast.Name(id=name) if name in JSON_NAMES:
                return JSON_NAMES[name]
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if not isinstance(number, bool):
                return -number
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [_literal_value(item, depth + 1) for item in items]
            case ast.Dict(keys=keys, values=values):
                names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
                return dict(zip(names, [_literal_value(value, depth + 1) for value in values], strict=True))
    raise ValueError("not a literal, or nested too deeply")


def pythonic_body(grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the grammar of a call with JSON values: required arguments in the schema's order, then the others."""
    return f"{grammar.literal(f'{name}(')} {_keywords_grammar(grammar, parameters)} {grammar.literal(')')}"


def _keywords_grammar(grammar: Grammar, parameters: Mapping[str, Any]) -> str:
    """Return an expression for `key=value` of every required argument, then of any optional ones, separated by commas."""
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    written = {
        key: f"{grammar.literal(f'{key}=')} {grammar.schema({**definitions, **schema} if isinstance(schema, Mapping) else {})}"
        for key, schema in argument_schemas(parameters).items()
    }
    comma = grammar.literal(", ")
    required = [key for key in parameters.get("required") or () if key in written]
    optional = [written[key] for key in written if key not in required]
    if required:
        return " ".join([f" {comma} ".join(written[key] for key in required), *[f"({comma} {other})?" for other in optional]])
    starts = [" ".join([first, *[f"({comma} {later})?" for later in optional[number:]]]) for number, first in enumerate(optional, 1)]
    return f"({' | '.join(starts)})?" if starts else ""


PYTHONIC = CallSyntax(
    read_pythonic,
    DELIMITERS[:1],
    closing=DELIMITERS[1],
    special_tokens=True,
    body=pythonic_body,
    around_calls=DELIMITERS,
    brackets="always",
    separator=", ",
)
