"""OpenAI Responses: `/v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.values import Constraint
from areal_actors.gateway.protocols import openai_common as openai
from areal_actors.gateway.protocols.base import Dialect
from areal_actors.gateway.protocols.call_fields import (
    check_encodable,
    json_constraint,
    sampling,
    template_kwargs,
    tool_fields,
)
from areal_actors.gateway.protocols.fields import (
    Flag,
    RequestStruct,
    Text,
    TokenLimit,
    TopLogprobs,
    ignored_fields,
    unsupported_error,
)
from areal_actors.gateway.protocols.responses_answer import ResponseAnswer
from areal_actors.gateway.protocols.responses_choice import Choice, choice_fields, ignored_choices
from areal_actors.gateway.protocols.responses_input import input_fields, item_type
from areal_actors.gateway.protocols.responses_tools import (
    client_tools,
    declared_tools,
    definitions,
    ignored_parts,
    shown_tools,
    tool_type,
)
from areal_actors.messages import ModelRequest

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
WIRE_NAMES = {
    "continues": "previous_response_id",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "messages": "input",
}
"""Fields of `ModelRequest` that have another name in this dialect."""


class ResponseSchemaFormat(RequestStruct, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    schema: dict[str, Any]
    name: str = ""
    description: str | None = None
    strict: Flag = None


class ResponseText(RequestStruct, ignored=("verbosity",)):
    """Format of the answer's text."""

    format: openai.TextFormat | openai.JsonFormat | ResponseSchemaFormat | None = None


class ResponseReasoning(RequestStruct, ignored=("context", "mode")):
    """Reasoning options; the reasoning is always returned in full, as its own summary if the client requests one."""

    effort: openai.Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseRequest(
    openai.CallFields,
    ignored=(
        "access_programs",
        "client_metadata",
        "context_management",
        "image",
        "max_tool_calls",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
    ),
    unsupported=("conversation", "prompt"),
):
    """A request to `/v1/responses`."""

    input: str | Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    instructions: str | None = None
    previous_response_id: Text | None = None
    tools: (
        Annotated[list[dict[str, Any]], msgspec.Meta(description="Functions, custom tools, namespaces, hosted tools.")]
        | None
    ) = None
    tool_choice: Choice | None = None
    parallel_tool_calls: Flag = None
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    include: list[str] | None = None
    top_logprobs: TopLogprobs | None = None
    max_output_tokens: TokenLimit | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: Flag = None
    truncation: Literal["auto", "disabled"] | None = None
    background: Flag = None


def _call(request: ResponseRequest, session: str) -> ModelRequest:
    if request.background:
        raise unsupported_error("background")
    continues = request.previous_response_id or ""
    choice, allowed = choice_fields(request.tool_choice)
    check_encodable(request.metadata, "metadata")  # the answer repeats it
    declared = definitions(declared_tools(request.tools, request.input))
    tools = tool_fields(declared, choice, allowed=allowed)
    return ModelRequest(
        session=session,
        continues=continues,
        **input_fields(request.input, request.instructions, continued=bool(continues)),
        **tools,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        constraint=_constraint(request.text),
        template_kwargs=template_kwargs(
            request.chat_template_kwargs, request.reasoning.effort if request.reasoning else None
        ),
        sampling=sampling(
            request, max_tokens=request.max_output_tokens, stop=request.stop, top_logprobs=request.top_logprobs
        ),
        logprobs=bool(request.top_logprobs) or LOGPROBS in (request.include or ()),
        stream=request.stream is True,
        store=request.store is not False,
    )


def _constraint(text: ResponseText | None) -> Constraint | None:
    match text.format if text else None:
        case ResponseSchemaFormat(schema=schema):
            return json_constraint(schema, "text.format.schema")
        case openai.JsonFormat():
            return openai.ANY_JSON
    return None


def _answer(request: ResponseRequest, created: int) -> ResponseAnswer:
    encrypted = ENCRYPTED_REASONING in (request.include or ())
    tools = client_tools(declared_tools(request.tools, request.input))
    return ResponseAnswer(_head(request, created), tools, encrypted=encrypted, summarized=_summary(request) is not None)


def _summary(request: ResponseRequest) -> str | None:
    """Return the kind of summary that the client requests, if any."""
    reasoning = request.reasoning or ResponseReasoning()
    kind = reasoning.summary or reasoning.generate_summary
    return None if kind == "none" else kind


def _ignored_names(request: ResponseRequest) -> list[str]:
    names = [
        *ignored_fields(request),
        *ignored_fields(request.reasoning, "reasoning"),
        *ignored_fields(request.text, "text"),
    ]
    names += [
        f"include[] ({name})"
        for name in request.include or ()
        if name not in (LOGPROBS, ENCRYPTED_REASONING) and name.isprintable()
    ]
    if request.truncation == "auto":
        names.append("truncation")
    return [*names, *ignored_choices(request.tool_choice), *ignored_parts(declared_tools(request.tools, request.input))]


def _head(request: ResponseRequest, created: int) -> dict[str, Any]:
    """Return the fields that a response copies from its request; id, status, output and usage are set later."""
    choice = request.tool_choice
    return {
        "id": "",
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": _summary(request)},
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {"format": msgspec.to_builtins((request.text and request.text.format) or openai.TextFormat())},
        "tool_choice": msgspec.to_builtins(choice) if choice else "auto",
        "tools": shown_tools(request.tools or ()),
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
    }


def _error(message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
    code = "previous_response_not_found" if field == "continues" else code
    return openai.error(message, status, WIRE_NAMES.get(field, field), code)


RESPONSES = Dialect(
    name="responses",
    path="responses",
    summary="OpenAI responses",
    request_type=ResponseRequest,
    call=_call,
    answer=_answer,
    error=_error,
    ignored=_ignored_names,
    element_types={"input": item_type, "input[].tools": tool_type, "tools": tool_type, "tools[].tools": tool_type},
)
