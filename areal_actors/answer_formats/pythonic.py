"""LFM2: a list of Python calls, `[name(key=value, …), …]`, between two marks; values are Python literals or JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from areal_actors.answer_formats.base import ToolCall
from areal_actors.answer_formats.grammar import Grammar, alternatives
from areal_actors.answer_formats.json_calls import DEEPEST, check_declared
from areal_actors.answer_formats.syntax import Block, Declared, Incomplete, Malformed
from areal_actors.answer_formats.typed_values import properties_of

OPENING, CLOSING = "<|tool_call_start|>", "<|tool_call_end|>"
JSON_NAMES = {"true": True, "false": False, "null": None}


class PythonicCalls:
    """Python calls with keyword arguments; one that does not parse makes the whole list text."""

    marks: tuple[str, ...] = (OPENING,)
    bare = ""
    closing = CLOSING
    newlines = 0
    leading = 0

    def read(self, text: str, at: int, declared: Declared, *, final: bool) -> Block:  # noqa: ARG002 - nothing hangs on what follows
        """Read the list."""
        start = at + len(OPENING)
        end = text.find(CLOSING, start)
        if end < 0:
            raise Incomplete
        calls = []
        for call in calls_in(text[start:end].strip(), start):
            name = ast.unparse(call.func)
            check_declared(name, declared, start)
            calls.append(ToolCall(name=name, arguments=arguments_of(call, start)))
        return Block(end + len(CLOSING), tuple(calls))

    def grammar(self, grammar: Grammar, declared: Declared, *, parallel: bool) -> str:
        """Calls with JSON values: required arguments in the schema's order, then the others."""
        calls = [
            f"{grammar.literal(f'{name}(')} {keywords_grammar(grammar, parameters)} {grammar.literal(')')}"
            for name, parameters in declared.items()
        ]
        call = grammar.rule(alternatives(calls))
        return f'{grammar.mark(OPENING)} "[" {grammar.repeated(call, grammar.literal(", "), parallel=parallel)} "]" {grammar.mark(CLOSING)}'


def calls_in(text: str, position: int) -> list[ast.Call]:
    """The calls of a list.

    Raises:
        Malformed: this is no list of calls.
    """
    if text.count("(") + text.count("[") + text.count("{") > DEEPEST * 10:
        raise Malformed(f"it has more than {DEEPEST * 10} brackets", position)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed("it is not a list of Python calls", position) from error
    if not isinstance(tree, ast.List) or not tree.elts:
        raise Malformed("a list of Python calls should stand inside its marks", position)
    calls = [item for item in tree.elts if isinstance(item, ast.Call) and isinstance(item.func, ast.Name | ast.Attribute) and not item.args]
    if len(calls) < len(tree.elts):
        raise Malformed("the list should hold calls with keyword arguments only", position)
    return calls


def arguments_of(call: ast.Call, position: int) -> str:
    """The arguments as a JSON object, in the order in which they were written.

    Raises:
        Malformed: a value is no literal, or has no JSON; an argument has no name, or comes twice.
    """
    names = {keyword.arg for keyword in call.keywords}
    if None in names or len(names) < len(call.keywords):
        raise Malformed("an argument has no name, or comes twice", position)
    try:
        values = {str(keyword.arg): literal(keyword.value) for keyword in call.keywords}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise Malformed("its arguments are not plain values", position) from error


def literal(node: ast.expr, depth: int = 0) -> Any:
    """The value of a Python literal, in which JSON's words for constants stand for themselves.

    Raises:
        ValueError: it is no literal, has no JSON, or is nested too deeply.
    """
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(node, ast.Name) and node.id in JSON_NAMES:
        return JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [literal(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key is not a string")
        return dict(zip(keys, [literal(value, depth + 1) for value in node.values], strict=True))
    value = -number_of(node.operand) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else constant_of(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("there is no such value in JSON")  # noqa: TRY004 - all that is no literal is a ValueError here
    return value


def constant_of(node: ast.expr) -> Any:
    """The value of a constant.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(node, ast.Constant):
        raise ValueError("not a constant")  # noqa: TRY004 - as above
    return node.value


def number_of(node: ast.expr) -> int | float:
    """The value of a number.

    Raises:
        ValueError: it is none.
    """
    value = constant_of(node)
    if type(value) not in (int, float):
        raise ValueError("not a number")
    number: int | float = value
    return number


def keywords_grammar(grammar: Grammar, parameters: Mapping[str, Any]) -> str:
    """`key=value` of every required argument, and of others if wanted, with commas between."""
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    written = {
        key: f"{grammar.literal(f'{key}=')} {grammar.schema({**definitions, **schema} if isinstance(schema, Mapping) else {})}"
        for key, schema in properties_of(parameters).items()
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
