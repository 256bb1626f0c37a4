"""Writes grammars in the Lark dialect of llguidance for what a completion must look like.

A mark such as `<tool_call>` is plain text to one tokenizer and a single token to another, and llguidance wants the two written
differently. So a grammar says both: a rule with a mark is written for plain text, and the comment above it gives the same rule
for a tokenizer that has the mark as a token. `with_token_marks` makes the choice, where the tokenizer is at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_actors.values import Constraint

CANONICAL_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""JSON as chat templates render it, so that a forced call is rendered again as it was sampled; keywords that llguidance does not
know are passed over."""
WHITESPACE = r" |\n {0,32}"
"""What may stand between two parts of JSON that a client asked for: as anybody writes it, but no model can go on with it for ever."""

TOKEN_RULE = re.compile(r'^// token ("(?:[^"\\]|\\.)*"): (.*)\n.*$', re.MULTILINE)
PLACE = "<[]>"
"""Stands for the mark's token in the comment above a rule."""


class Grammar:
    """Collects rules."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Name of each rule, by what it says."""
        self._rules: list[str] = []

    def literal(self, text: str) -> str:
        """Exactly this text, which holds no mark."""
        return json.dumps(text, ensure_ascii=False)

    def mark(self, mark: str) -> str:
        """This mark, as a token or as text."""
        return self._marked(mark, PLACE, self.literal(mark))

    def until(self, mark: str, before: str = "", without: str = "") -> str:
        """Any text up to and with this mark, and what has to stand `before` the mark; the text never holds `without`."""
        text = f"(/(?s:.*)/ & ~/(?s:.*){escaped(without)}(?s:.*)/)" if without else "/(?s:.*)/"
        free = self._named(f"{text} {self.literal(before)}" if before else text, "TEXT")
        whole = self._named(f"{text} {self.literal(before + mark)}", "TEXT")
        return self._marked(mark, f"{free} {PLACE}", whole, option="[lazy]")

    def schema(self, schema: Mapping[str, Any]) -> str:
        """JSON that follows this schema, as Python's `json.dumps` spaces it."""
        return self.rule("%json " + json.dumps({**schema, "x-guidance": CANONICAL_JSON}))

    def arguments(self, schema: Mapping[str, Any]) -> str:
        """An arguments object; keys that the schema does not name only where it says outright that there may be others."""
        closed = {"additionalProperties": False} if "properties" in schema else {}
        return self.schema({"type": "object", **closed, **schema})

    def rule(self, body: str) -> str:
        """A rule that says this; the same rule if there is one."""
        return self._named(body, "rule")

    def repeated(self, call: str, separator: str, *, parallel: bool) -> str:
        """One call, or if `parallel` any number of them."""
        return f"{call} ({separator} {call})*" if parallel else call

    def constraint(self, start: str) -> Constraint:
        """The constraint: all rules, and this expression to start from."""
        return Constraint(kind="lark", text="\n".join([f"start: {start}", *self._rules, ""]))

    def _marked(self, mark: str, as_token: str, as_text: str, option: str = "") -> str:
        """A rule in two forms; `option` holds for the second."""
        key = f"{as_token} {as_text}"
        if key not in self._names:
            name = self._names[key] = f"mark_{len(self._names)}"
            spelt = json.dumps(mark, ensure_ascii=False)
            self._rules.append(f"// token {spelt}: {name}: {as_token}\n{name}{option}: {as_text}")
        return self._names[key]

    def _named(self, body: str, kind: str) -> str:
        """Upper case makes a terminal, one regular expression; lower case a rule."""
        if body not in self._names:
            name = self._names[body] = f"{kind}_{len(self._names)}"
            self._rules.append(f"{name}: {body}")
        return self._names[body]


def free_json(schema: Mapping[str, Any]) -> str:
    """JSON that follows this schema, spaced as the model likes."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def escaped(text: str) -> str:
    """Text for the inside of a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")


def with_token_marks(constraint: Constraint, token_id: Callable[[str], int | None]) -> Constraint:
    """The constraint for one tokenizer: `token_id` gives the id of a mark that is one token, None of one that is plain text."""

    def chosen(rule: re.Match[str]) -> str:
        mark = json.loads(rule[1])
        number = token_id(mark)
        return rule[0] if number is None else rule[2].replace(PLACE, f"<[{number}]>")

    return Constraint(kind=constraint.kind, text=TOKEN_RULE.sub(chosen, constraint.text)) if constraint.kind == "lark" else constraint


def alternatives(expressions: Sequence[str]) -> str:
    """One of these."""
    return f"({' | '.join(expressions)})"
