"""LFM2: a list of Python calls, `[name(key=value, …), …]`, between two delimiters.

Values are Python literals or JSON.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.tokenization.tool_parsers.base import DeclaredTools, ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar
from areal_actors.tokenization.tool_parsers.json_calls import MAX_DEPTH, check_name
from areal_actors.tokenization.tool_parsers.syntax import CallSyntax, MalformedCall, ParsedCalls, enclosed_text
from areal_actors.tokenization.tool_parsers.tagged_formats import argument_schemas

DELIMITERS = ("<|tool_call_start|>", "<|tool_call_end|>")
LINE_DELIMITERS = ("<function_calls>", "</function_calls>")
STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
"""A string, in which some templates leave line breaks as they are."""
JSON_NAMES = {"true": True, "false": False, "null": None}


def read_pythonic(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse the list; one call that does not parse makes the whole list text."""
    return _read_enclosed(text, at, DELIMITERS, declared)


def read_lines(text: str, at: int, declared: DeclaredTools) -> ParsedCalls:
    """Parse calls on separate lines, without a list."""
    return _read_enclosed(text, at, LINE_DELIMITERS, declared)


def _read_enclosed(text: str, at: int, delimiters: tuple[str, str], declared: DeclaredTools) -> ParsedCalls:
    start = at + len(delimiters[0])
    written, end = enclosed_text(text, start, delimiters[1])
    return ParsedCalls(end, pythonic_calls(written.strip(), start, declared, as_lines=delimiters is LINE_DELIMITERS))


def pythonic_calls(
    text: str, position: int, declared: DeclaredTools, *, as_lines: bool = False
) -> tuple[ToolCall, ...]:
    """Return the calls of a list, or of separate lines.

    Raises:
        MalformedCall: one of them does not parse, or names no tool; at `position`.
    """
    calls = []
    for call in _parse_calls(text, position, as_lines=as_lines):
        name = ast.unparse(call.func)
        check_name(name, declared, position)
        calls.append(ToolCall(name=name, arguments=_keyword_arguments_json(call, position)))
    return tuple(calls)


def _parse_calls(text: str, position: int, *, as_lines: bool) -> list[ast.Call]:
    if text.count("(") + text.count("[") + text.count("{") > MAX_DEPTH * 10:
        raise MalformedCall(f"it has more than {MAX_DEPTH * 10} brackets", position)
    escaped = STRING.sub(lambda string: string[0].replace("\n", "\\n"), text)
    try:
        tree: ast.expr = _lines_as_list(escaped) if as_lines else ast.parse(escaped, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedCall("it is not a list of Python calls", position) from error
    if not isinstance(tree, ast.List) or not tree.elts:
        raise MalformedCall("expected a list of Python calls between its delimiters", position)
    calls = [
        item
        for item in tree.elts
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name | ast.Attribute) and not item.args
    ]
    if len(calls) < len(tree.elts):
        raise MalformedCall("expected calls with keyword arguments only", position)
    return calls


def _lines_as_list(text: str) -> ast.expr:
    """Return the syntax tree of calls on separate lines as that of a list.

    Raises ValueError if there are other statements.
    """
    statements = ast.parse(text).body
    expressions = [statement.value for statement in statements if isinstance(statement, ast.Expr)]
    if len(expressions) < len(statements):
        raise ValueError("a line is not an expression")
    return ast.List(elts=expressions)


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
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if not isinstance(
                number, bool
            ):
                return -number
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [_literal_value(item, depth + 1) for item in items]
            case ast.Dict(keys=keys, values=values):
                names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
                return dict(zip(names, [_literal_value(value, depth + 1) for value in values], strict=True))
    raise ValueError("not a literal, or nested too deeply")


def literal_json(text: str) -> str:
    """Return a Python literal as JSON text; empty if it is none."""
    if text.count("(") + text.count("[") + text.count("{") > MAX_DEPTH * 10:
        return ""
    try:
        return json.dumps(_literal_value(ast.parse(text, mode="eval").body), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def pythonic_body(grammar: Grammar, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the grammar of a call with JSON values: required arguments in the schema's order, then the others."""
    return f"{grammar.literal(f'{name}(')} {_keywords_grammar(grammar, parameters)} {grammar.literal(')')}"


def _keywords_grammar(grammar: Grammar, parameters: Mapping[str, Any]) -> str:
    """Return an expression for `key=value` of all required arguments, then of optional ones, with commas."""
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    written = {
        key: (
            f"{grammar.literal(f'{key}=')}"
            f" {grammar.schema({**definitions, **schema} if isinstance(schema, Mapping) else {})}"
        )
        for key, schema in argument_schemas(parameters).items()
    }
    comma = grammar.literal(", ")
    required = [key for key in parameters.get("required") or () if key in written]
    optional = [written[key] for key in written if key not in required]
    if required:
        return " ".join(
            [f" {comma} ".join(written[key] for key in required), *[f"({comma} {other})?" for other in optional]]
        )
    starts = [
        " ".join([first, *[f"({comma} {later})?" for later in optional[number:]]])
        for number, first in enumerate(optional, 1)
    ]
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
"""LFM2."""
PYTHON_LINES = PYTHONIC._replace(
    read=read_lines,
    openings=LINE_DELIMITERS[:1],
    closing=LINE_DELIMITERS[1],
    around_calls=LINE_DELIMITERS,
    brackets="",
    separator="\n",
)
"""Olmo 3."""


def write_pythonic(calls: Sequence[tuple[str, str]]) -> str:
    """Return calls (names, and arguments as JSON) as LFM2 writes them."""
    return f"{DELIMITERS[0]}[{', '.join(map(write_call, calls))}]{DELIMITERS[1]}"


def write_lines(calls: Sequence[tuple[str, str]]) -> str:
    """Return calls (names, and arguments as JSON) as Olmo 3 writes them."""
    lines = "\n".join(map(write_call, calls))
    return f"{LINE_DELIMITERS[0]}{lines}{LINE_DELIMITERS[1]}"


def write_call(call: tuple[str, str]) -> str:
    """Return a call (its name, and arguments as JSON) in Python."""
    name, arguments = call
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in json.loads(arguments).items())})"
