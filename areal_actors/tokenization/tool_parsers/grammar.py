"""Writes grammars that constrain a completion, in the Lark dialect of llguidance.

A delimiter such as `<tool_call>` is plain text to one tokenizer and a single token to another, and llguidance has a
different syntax for each. So a grammar has both: a rule with a delimiter is written for plain text, and the comment
above it is the rule for a tokenizer in which the delimiter is a token. `resolve_delimiters` chooses, once the tokenizer
is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_actors.core.values import Constraint

CANONICAL_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""JSON as chat templates render it, so that the next prompt renders a forced call as it was sampled; keywords that
llguidance does not support are ignored."""
WHITESPACE = r" |\n {0,32}"
"""White space allowed between JSON tokens of a client's schema: any usual style, but bounded, or a model could repeat
it forever."""

TOKEN_RULE = re.compile(r'^// token ("(?:[^"\\]|\\.)*"): (.*)\n.*$', re.MULTILINE)
MARK = re.compile(r"\]<\][^\[\]<>\s]+\[>\[|<｜[^｜<>]+｜>|｜[^｜<>\s]+｜|<[^<>\s]+>|\[/?[A-Z_]+\]")
"""Part of a delimiter that may be one token."""
ID_PLACEHOLDER = "<[]>"
"""Placeholder of the delimiter's token id in the comment above a rule."""


class Grammar:
    """A grammar under construction: collects rules."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Names of the rules, by their bodies."""
        self._rules: list[str] = []

    def literal(self, text: str) -> str:
        """Return an expression for exactly this text, which contains no delimiter."""
        return json.dumps(text, ensure_ascii=False)

    def delimiter(self, delimiter: str) -> str:
        """Return an expression for this delimiter, as a token or as text."""
        return self._delimiter_rule(delimiter, ID_PLACEHOLDER, self.literal(delimiter))

    def until(self, delimiter: str, before: str = "", without: str = "") -> str:
        """Return an expression for any text without `without` that ends with `before` and this delimiter."""
        text = f"(/(?s:.*)/ & ~/(?s:.*){escape_text(without)}(?s:.*)/)" if without else "/(?s:.*)/"
        free = self._rule_name(f"{text} {self.literal(before)}" if before else text, "TEXT")
        whole = self._rule_name(f"{text} {self.literal(before + delimiter)}", "TEXT")
        return self._delimiter_rule(delimiter, f"{free} {ID_PLACEHOLDER}", whole, option="[lazy]")

    def schema(self, schema: Mapping[str, Any]) -> str:
        """Add a rule for JSON of this schema, with the white space of Python's `json.dumps`."""
        return self.rule("%json " + json.dumps({**schema, "x-guidance": CANONICAL_JSON}))

    def arguments(self, schema: Mapping[str, Any]) -> str:
        """Add a rule for an arguments object; other keys only if the schema sets `additionalProperties`."""
        closed = {"additionalProperties": False} if "properties" in schema else {}
        return self.schema({"type": "object", **closed, **schema})

    def rule(self, body: str) -> str:
        """Return the name of the rule with this body; adds it unless it exists."""
        return self._rule_name(body, "rule")

    def define(self, name: str, body: str) -> None:
        """Add a rule of this name, which may refer to itself; adds it once."""
        if name not in self._names.values():
            self._names[body] = name
            self._rules.append(f"{name}: {body}")

    def enclose(self, delimiters: tuple[str, str], expression: str) -> str:
        """Return the expression between two delimiters; an empty one is left out."""
        opening, closing = [self.text(delimiter) for delimiter in delimiters]
        return f"{opening} {expression} {closing}".strip()

    def text(self, delimiter: str) -> str:
        """Return an expression for a delimiter of several tokens.

        Each part that may be a token is one, the rest is text.
        """
        parts, at = [], 0
        for mark in MARK.finditer(delimiter):
            parts += [self.literal(delimiter[at : mark.start()])] if mark.start() > at else []
            parts.append(self.delimiter(mark[0]))
            at = mark.end()
        return " ".join([*parts, self.literal(delimiter[at:])] if delimiter[at:] else parts)

    def constraint(self, start: str) -> Constraint:
        """Return the constraint: all rules, and this start expression."""
        return Constraint(kind="lark", text="\n".join([f"start: {start}", *self._rules, ""]))

    def _delimiter_rule(self, delimiter: str, as_token: str, as_text: str, option: str = "") -> str:
        """Add a rule in both forms; `option` applies to the second."""
        key = f"{as_token} {as_text}"
        if key not in self._names:
            name = self._names[key] = f"delimiter_{len(self._names)}"
            quoted = json.dumps(delimiter, ensure_ascii=False)
            self._rules.append(f"// token {quoted}: {name}: {as_token}\n{name}{option}: {as_text}")
        return self._names[key]

    def _rule_name(self, body: str, kind: str) -> str:
        """Upper case makes a terminal, one regular expression; lower case a rule."""
        if body not in self._names:
            name = self._names[body] = f"{kind}_{len(self._names)}"
            self._rules.append(f"{name}: {body}")
        return self._names[body]


def free_json(schema: Mapping[str, Any]) -> str:
    """Return an expression for JSON of this schema with any usual white space."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def escape_text(text: str) -> str:
    """Return the text escaped for a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")


def resolve_delimiters(constraint: Constraint, token_id: Callable[[str], int | None]) -> Constraint:
    """Return the constraint for one tokenizer.

    `token_id` returns the id of a delimiter that is one token, None if it is plain text.
    """

    def choose_rule(rule: re.Match[str]) -> str:
        number = token_id(json.loads(rule[1]))
        return rule[0] if number is None else rule[2].replace(ID_PLACEHOLDER, f"<[{number}]>")

    return (
        Constraint(kind=constraint.kind, text=TOKEN_RULE.sub(choose_rule, constraint.text))
        if constraint.kind == "lark"
        else constraint
    )


def alternatives(expressions: Sequence[str]) -> str:
    """Return an expression for any one of these."""
    return f"({' | '.join(expressions)})"
