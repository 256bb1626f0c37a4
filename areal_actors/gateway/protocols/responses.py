"""OpenAI Responses: `/v1/responses`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.config import Fraction, NonNegativeFloat
from areal_actors.core.values import Constraint
from areal_actors.gateway.protocols import openai_common as openai
from areal_actors.gateway.protocols.fields import (
    Flag,
    Ignored,
    LogitBias,
    RequestStruct,
    Seed,
    Stop,
    Text,
    TokenLimit,
    TopK,
    TopLogprobs,
    TopP,
    Unsupported,
    UnsupportedList,
    check_encodable,
    decode,
    effort_kwargs,
    stop_strings,
    template_kwargs,
    unsupported,
)
from areal_actors.gateway.protocols.responses_answer import ResponseStream, build_response
from areal_actors.gateway.protocols.responses_input import input_messages
from areal_actors.gateway.protocols.tools import NAMED_TOOL, check_tools, tool_definition
from areal_actors.messages import ModelRequest, ModelResponsePart

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""All but the first two concern items that this gateway does not produce."""
WIRE_NAMES = {"continues": "previous_response_id", "max_tokens": "max_output_tokens", "response_format": "text.format", "messages": "input"}
"""Fields of `ModelRequest` that have another name in this dialect."""


class ResponseTool(RequestStruct, tag_field="type", tag="function"):
    """A function that the model may call."""

    name: Text
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: Flag = None
    allowed_callers: list[Literal["direct"]] | None = None
    output_schema: Ignored = None
    defer_loading: Flag = None


class ResponseToolChoice(RequestStruct, tag_field="type", tag="function"):
    """The model must call this tool."""

    name: Text


class ResponseTextFormat(RequestStruct, tag_field="type", tag="text"):
    """Free text."""


class ResponseJsonFormat(RequestStruct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class ResponseSchemaFormat(RequestStruct, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    schema: dict[str, Any]
    name: str = ""
    description: str | None = None
    strict: Flag = None


class ResponseText(RequestStruct):
    """Format of the answer's text."""

    format: ResponseTextFormat | ResponseJsonFormat | ResponseSchemaFormat | None = None
    verbosity: Ignored = None


class ResponseReasoning(RequestStruct):
    """Reasoning options; the reasoning is always returned in full."""

    effort: openai.Effort | None = None
    summary: Ignored = None
    generate_summary: Ignored = None
    context: Ignored = None
    mode: Ignored = None


class ResponseRequest(RequestStruct):
    """A request to `/v1/responses`."""

    input: str | Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    model: str = "default"
    instructions: str | None = None
    previous_response_id: Text | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: Flag = None
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    include: list[Includable] | None = None
    temperature: NonNegativeFloat | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    logit_bias: LogitBias | None = None
    top_logprobs: TopLogprobs | None = None
    max_output_tokens: TokenLimit | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: Flag = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: Flag = None
    stream_options: openai.StreamOptions | None = None
    max_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    user: Ignored = None
    background: Flag = None
    access_programs: Unsupported = None
    context_management: UnsupportedList | None = None
    conversation: Unsupported = None
    image: Unsupported = None
    moderation: Unsupported = None
    prompt: Unsupported = None


DECODER = msgspec.json.Decoder(ResponseRequest)


class Responses:
    """The dialect."""

    name = "responses"
    path = "responses"
    request_type = ResponseRequest

    def decode(self, body: bytes) -> ResponseRequest:
        """See `Dialect`."""
        return decode(DECODER, body)

    def call(self, request: ResponseRequest, session: str) -> ModelRequest:
        """See `Dialect`."""
        if request.background:
            raise unsupported("background")
        continues = request.previous_response_id or ""
        tools = tuple([tool_definition(one.name, one.description, one.parameters) for one in _tools(request)])
        choice = request.tool_choice
        tool_choice = NAMED_TOOL + choice.name if isinstance(choice, ResponseToolChoice) else choice or "auto"
        check_tools(tools, tool_choice)
        check_encodable(request.metadata, "metadata")  # the answer repeats it
        return ModelRequest(
            session=session,
            messages=input_messages(request.input, request.instructions, continued=bool(continues)),
            continues=continues,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            constraint=_constraint(request.text),
            template_kwargs=template_kwargs(
                request.chat_template_kwargs, **effort_kwargs(request.reasoning.effort if request.reasoning else None)
            ),
            sampling=_sampling(request),
            logprobs=bool(request.top_logprobs) or LOGPROBS in (request.include or ()),
            stream=request.stream is True,
            store=request.store is not False,
        )

    def is_streaming(self, request: ResponseRequest) -> bool:
        """See `Dialect`."""
        return request.stream is True

    def response_body(self, request: ResponseRequest, parts: Sequence[ModelResponsePart], created: int) -> dict[str, Any]:
        """See `Dialect`."""
        return build_response(_head(request, created), parts[0], encrypted=_includes_encrypted(request))

    def events(self, request: ResponseRequest, created: int) -> ResponseStream:
        """See `Dialect`."""
        return ResponseStream(_head(request, created), encrypted=_includes_encrypted(request))

    def error(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
        """See `Dialect`."""
        code = "previous_response_not_found" if field == "continues" else code
        return openai.error(message, status, WIRE_NAMES.get(field, field), code)


def _includes_encrypted(request: ResponseRequest) -> bool:
    return ENCRYPTED_REASONING in (request.include or ())


def _tools(request: ResponseRequest) -> list[ResponseTool]:
    for index, one in enumerate(request.tools or ()):
        if one.defer_loading:
            raise unsupported(f"tools[{index}].defer_loading")
        check_encodable(one.output_schema, f"tools[{index}].output_schema")  # the answer repeats it
    return request.tools or []


def _constraint(text: ResponseText | None) -> Constraint | None:
    match text.format if text else None:
        case ResponseSchemaFormat(schema=schema):
            return openai.json_constraint(schema, "text.format.schema")
        case ResponseJsonFormat():
            return openai.json_constraint({"type": "object"}, "text.format")
    return None


def _sampling(request: ResponseRequest) -> dict[str, Any]:
    params = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": None if request.top_k is None else max(request.top_k, 0),
        "min_p": request.min_p,
        "seed": request.seed,
        "stop": stop_strings(request.stop) or None,
        "logit_bias": request.logit_bias,
        "top_logprobs": request.top_logprobs,
        "max_tokens": request.max_output_tokens,
    }
    return {name: value for name, value in params.items() if value is not None}


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
        "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {"format": msgspec.to_builtins((request.text and request.text.format) or ResponseTextFormat())},
        "tool_choice": msgspec.to_builtins(choice) if choice else "auto",
        "tools": msgspec.to_builtins(request.tools or []),
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
    }
