"""LFM2: a list of Python calls, `[name(key=value, …), …]`, between two delimiters; values are Python literals or JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from areal_actors.tokenization.tool_parsers.base import ToolCall
from areal_actors.tokenization.tool_parsers.grammar import Grammar, alternatives
from areal_actors.tokenization.tool_parsers.json_calls import MAX_DEPTH, check_declared
from areal_actors.tokenization.tool_parsers.syntax import DeclaredTools, IncompleteCall, MalformedCall, ParsedCalls
from areal_actors.tokenization.tool_parsers.typed_values import argument_schemas

OPENING, CLOSING = "<|tool_call_start|>", "<|tool_call_end|>"
JSON_NAMES = {"true": True, "false": False, "null": None}


class PythonicCalls:
    """Python calls with keyword arguments; one that does not parse makes the whole list text."""

    openings: tuple[str, ...] = (OPENING,)
    bare = ""
    closing = CLOSING
    newlines = 0
    leading_newlines = 0

    def read(self, text: str, at: int, declared: DeclaredTools, *, final: bool) -> ParsedCalls:  # noqa: ARG002 - the result does not depend on later text
        """Parse the list."""
        start = at + len(OPENING)
        end = text.find(CLOSING, start)
        if end < 0:
            raise IncompleteCall
        calls = []
        for call in parse_calls(text[start:end].strip(), start):
            name = ast.unparse(call.func)
            check_declared(name, declared, start)
            calls.append(ToolCall(name=name, arguments=keyword_arguments_json(call, start)))
        return ParsedCalls(end + len(CLOSING), tuple(calls))

    def grammar(self, grammar: Grammar, declared: DeclaredTools, *, parallel: bool) -> str:
        """Return a grammar of calls with JSON values: required arguments in the schema's order, then the others."""
        calls = [
            f"{grammar.literal(f'{name}(')} {keywords_grammar(grammar, parameters)} {grammar.literal(')')}"
            for name, parameters in declared.items()
        ]
        call = grammar.rule(alternatives(calls))
        items = grammar.repeated(call, grammar.literal(", "), parallel=parallel)
        return f'{grammar.delimiter(OPENING)} "[" {items} "]" {grammar.delimiter(CLOSING)}'


def parse_calls(text: str, position: int) -> list[ast.Call]:
    """Parse a list of calls.

    Raises:
        MalformedCall: this is not a list of calls.
    """
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


def keyword_arguments_json(call: ast.Call, position: int) -> str:
    """Return the arguments as a JSON object, in their original order.

    Raises:
        MalformedCall: a value is not a literal, or not representable in JSON; an argument has no name, or occurs twice.
    """
    names = {keyword.arg for keyword in call.keywords}
    if None in names or len(names) < len(call.keywords):
        raise MalformedCall("an argument has no name, or occurs twice", position)
    try:
        values = {str(keyword.arg): literal_value(keyword.value) for keyword in call.keywords}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise MalformedCall("its arguments are not literals that JSON can represent", position) from error


def literal_value(node: ast.expr, depth: int = 0) -> Any:
    """Return the value of a Python literal, which may contain JSON's `true`, `false` and `null`.

    Raises:
        ValueError: it is not a literal, not representable in JSON, or nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(node, ast.Name) and node.id in JSON_NAMES:
        return JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [literal_value(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key is not a string")
        return dict(zip(keys, [literal_value(value, depth + 1) for value in node.values], strict=True))
    value = -number_value(node.operand) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else constant_value(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("JSON cannot represent this value")  # noqa: TRY004 - callers catch ValueError
    return value


def constant_value(node: ast.expr) -> Any:
    """Return the value of a constant.

    Raises:
        ValueError: it is not a constant.
    """
    if not isinstance(node, ast.Constant):
        raise ValueError("not a constant")  # noqa: TRY004 - as above
    return node.value


def number_value(node: ast.expr) -> int | float:
    """Return the value of a number.

    Raises:
        ValueError: it is not a number.
    """
    value = constant_value(node)
    if type(value) not in (int, float):
        raise ValueError("not a number")
    number: int | float = value
    return number


def keywords_grammar(grammar: Grammar, parameters: Mapping[str, Any]) -> str:
    """Return an expression for `key=value` of every required argument, then of any optional ones, separated by commas."""
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    written = {
        key: f"{grammar.literal(f'{key}=')} {grammar.schema({**definitions, **schema} if isinstance(schema, Mapping) else {})}"
        for key, schema in argument_schemas(parameters).items()
    }
    required = [key for key in parameters.get("required") or () if key in written]
    optional = [key for key in written if key not in required]
    if required:
        return " ".join(
            [
                f" {grammar.literal(', ')} ".join(written[key] for key in required),
                *[f"({grammar.literal(', ')} {written[key]})?" for key in optional],
            ]
        )
    starts = [
        " ".join([written[key], *[f"({grammar.literal(', ')} {written[later]})?" for later in optional[number + 1 :]]])
        for number, key in enumerate(optional)
    ]
    return f"({' | '.join(starts)})?" if starts else ""
