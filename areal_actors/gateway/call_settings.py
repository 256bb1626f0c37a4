"""Sampling parameters and output constraint of a model call, from its request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from areal_actors.core.errors import PromptTooLong, RequestError
from areal_actors.core.values import Constraint, SamplingParams
from areal_actors.messages import ModelRequest
from areal_actors.tokenization.tool_parsers.base import AnswerFormat, ToolDefinition
from areal_actors.tokenization.tool_parsers.grammar import Grammar, free_json


def sampling_of(options: Mapping[str, Any], default: SamplingParams, *, trained: bool) -> SamplingParams:
    """The request's sampling parameters, with the session's defaults for those it leaves out.

    Raises:
        RequestError: a value is of the wrong type or out of range, or a completion for training (`trained`) would
            be sampled at another temperature than the trainer's log-probabilities use.
    """
    if not options:
        return default
    known = {name: getattr(default, name) for name in SamplingParams.__struct_fields__}
    try:
        sampling = msgspec.convert({**known, **options}, SamplingParams)
    except msgspec.ValidationError as error:
        complaint, _, at = str(error).partition(" - at `$.")
        field = at.rstrip("`").partition("[")[0]
        raise RequestError(f"'{field}': {complaint[0].lower()}{complaint[1:]}", field) from None
    if not 0 < sampling.top_p <= 1:
        raise RequestError(f"'top_p' is {sampling.top_p:g}; expected a number above 0, at most 1", "top_p")
    if trained and sampling.temperature != default.temperature:
        raise RequestError(
            f"'temperature' is {sampling.temperature:g}, but this run trains at {default.temperature:g}: "
            f"leave it out, or set sampling.temperature={sampling.temperature:g} in the recipe",
            "temperature",
        )
    return sampling


def callable_tools(request: ModelRequest) -> Sequence[ToolDefinition]:
    """The tools that the model may call in this answer.

    Raises:
        RequestError: it must call a tool that is not declared.
    """
    if request.tool_choice == "none":
        return ()
    if request.tool_choice == "required" and not request.tools:
        raise RequestError("'tool_choice' is required, but there are no tools; send 'tools'", "tool_choice")
    if not request.tool_choice.startswith("function:"):
        return request.tools
    name = request.tool_choice.removeprefix("function:")
    named = [tool for tool in request.tools if tool["function"]["name"] == name]
    if not named:
        known = ", ".join(tool["function"]["name"] for tool in request.tools) or "none"
        raise RequestError(f"'tool_choice' names the function '{name}', which is not in 'tools' ({known})", "tool_choice")
    return named


def constraint_of(request: ModelRequest, tools: Sequence[ToolDefinition], form: AnswerFormat, *, in_reasoning: bool) -> Constraint | None:
    """The constraint on the answer's text: a call to one of these tools, JSON, or either; open reasoning is closed first.

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
        raise RequestError("'response_format' must be a JSON schema where there are tools or reasoning", "response_format")
    answer = free_json(json.loads(request.constraint.text))
    if not tools:
        grammar = Grammar()
        return grammar.constraint(f"{grammar.until('</think>')} /\\n{{0,2}}/ {grammar.rule(answer)}")
    if in_reasoning or not form.stream(tools).push("{"):
        raise RequestError(
            "'response_format' and 'tools' cannot be combined in this model's format; send one of them, or tool_choice none",
            "response_format",
        )
    calls = form.constraint(tools, parallel=parallel)
    either = re.sub(r"(?m)^start\s*:", "calls:", calls.text, count=1)
    return Constraint(kind="lark", text=f"{either}\nstart: calls | answer\nanswer: {answer}\n")


def refuse_images(messages: Sequence[Mapping[str, Any]]) -> None:
    """Reject messages with images: the engines behind this gateway read text only.

    Raises:
        RequestError: a message has parts that are not text.
    """
    for index, message in enumerate(messages):
        if isinstance(message.get("content"), list):
            field = f"messages[{index}].content"
            raise RequestError(f"'{field}' has an image, but the model behind this gateway reads text only; send text", field)


def within_context(sampling: SamplingParams, prompt_tokens: int, context: int, field: str = "messages") -> SamplingParams:
    """The sampling parameters, with `max_tokens` capped by the rest of the context.

    Raises:
        PromptTooLong: the prompt leaves no room.
    """
    room = context - prompt_tokens
    if room < 1:
        raise PromptTooLong(prompt_tokens, context, field)
    return sampling if sampling.max_tokens <= room else msgspec.structs.replace(sampling, max_tokens=room)
