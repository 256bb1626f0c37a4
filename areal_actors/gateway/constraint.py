"""Output constraint of a model call, from its request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.messages import ModelRequest
from areal_actors.tokenization.tool_parsers.base import AnswerFormat, ToolDefinition
from areal_actors.tokenization.tool_parsers.grammar import Grammar, free_json


def constraint_of(
    request: ModelRequest, tools: Sequence[ToolDefinition], form: AnswerFormat, *, in_reasoning: bool
) -> Constraint | None:
    """The constraint on the answer's text: a call to one of these tools, JSON, or either.

    Open reasoning is closed first.

    Raises:
        RequestError: the model's format cannot express the constraint.
    """
    forced = request.tool_choice == "required" or request.tool_choice.startswith("function:")
    parallel = request.parallel_tool_calls
    if forced:
        return form.constraint(tools, parallel=parallel, in_reasoning=in_reasoning)
    if request.constraint is None or not (tools or in_reasoning):
        return request.constraint
    if request.constraint.kind != "json_schema":
        raise RequestError(
            "'response_format' must be a JSON schema where there are tools or reasoning", "response_format"
        )
    answer = free_json(json.loads(request.constraint.text))
    if not tools:
        grammar = Grammar()
        closing = next((closing for opening, closing in form.reasoning), "</think>")
        return grammar.constraint(f"{grammar.until(closing)} /\\n{{0,2}}/ {grammar.rule(answer)}")
    if in_reasoning or not form.stream(tools).push("{"):
        raise RequestError(
            "'response_format' and 'tools' cannot be combined in this model's format; send one of them, or tool_choice"
            " none",
            "response_format",
        )
    calls = form.constraint(tools, parallel=parallel)
    either = re.sub(r"(?m)^start\s*:", "calls:", calls.text, count=1)
    return Constraint(kind="lark", text=f"{either}\nstart: calls | answer\nanswer: {answer}\n")
