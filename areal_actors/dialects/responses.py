"""OpenAI Responses: `/v1/responses`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.config import Fraction, NonNegativeFloat
from areal_actors.dialects import openai_common as openai
from areal_actors.dialects.fields import (
    Flag,
    LogitBias,
    Refused,
    RefusedList,
    Seed,
    Stop,
    Text,
    TokenLimit,
    TopK,
    TopLogprobs,
    TopP,
    Unused,
    Wire,
    check_sendable,
    decode,
    effort_kwargs,
    refused,
    stop_strings,
    template_kwargs,
)
from areal_actors.dialects.responses_answer import ResponseStream, whole_response
from areal_actors.dialects.responses_input import input_messages
from areal_actors.dialects.tools import NAMED, check_tools, tool
from areal_actors.messages import CallModel, ModelAnswered
from areal_actors.values import Constraint

LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
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
"""All but the first two are about items that do not occur here."""
WIRE_NAMES = {"continues": "previous_response_id", "max_tokens": "max_output_tokens", "response_format": "text.format", "messages": "input"}
"""Fields of a model call that have another name here."""


class ResponseTool(Wire, tag_field="type", tag="function"):
    """A function that the model may call."""

    name: Text
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: Flag = None
    allowed_callers: list[Literal["direct"]] | None = None
    output_schema: Unused = None
    defer_loading: Flag = None


class ResponseToolChoice(Wire, tag_field="type", tag="function"):
    """Calls exactly this tool."""

    name: Text


class ResponseTextFormat(Wire, tag_field="type", tag="text"):
    """Free text."""


class ResponseJsonFormat(Wire, tag_field="type", tag="json_object"):
    """Some JSON object."""


class ResponseSchemaFormat(Wire, tag_field="type", tag="json_schema"):
    """JSON of a schema."""

    schema: dict[str, Any]
    name: str = ""
    description: str | None = None
    strict: Flag = None


class ResponseText(Wire):
    """What the answer's text is like."""

    format: ResponseTextFormat | ResponseJsonFormat | ResponseSchemaFormat | None = None
    verbosity: Unused = None


class ResponseReasoning(Wire):
    """How the model thinks; its reasoning always comes in full."""

    effort: openai.Effort | None = None
    summary: Unused = None
    generate_summary: Unused = None
    context: Unused = None
    mode: Unused = None


class ResponseRequest(Wire):
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
    max_tool_calls: Unused = None
    prompt_cache_key: Unused = None
    prompt_cache_options: Unused = None
    prompt_cache_retention: Unused = None
    safety_identifier: Unused = None
    service_tier: Unused = None
    user: Unused = None
    background: Flag = None
    access_programs: Refused = None
    context_management: RefusedList | None = None
    conversation: Refused = None
    image: Refused = None
    moderation: Refused = None
    prompt: Refused = None


DECODER = msgspec.json.Decoder(ResponseRequest)


class Responses:
    """The dialect."""

    name = "responses"
    path = "responses"
    request_type = ResponseRequest

    def decode(self, body: bytes) -> ResponseRequest:
        """See `Dialect`."""
        return decode(DECODER, body)

    def call(self, request: ResponseRequest, session: str) -> CallModel:
        """See `Dialect`."""
        if request.background:
            raise refused("background")
        continues = request.previous_response_id or ""
        tools = tuple([tool(one.name, one.description, one.parameters) for one in _tools(request)])
        choice = request.tool_choice
        tool_choice = NAMED + choice.name if isinstance(choice, ResponseToolChoice) else choice or "auto"
        check_tools(tools, tool_choice)
        check_sendable(request.metadata, "metadata")  # sent back with the answer
        return CallModel(
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

    def streams(self, request: ResponseRequest) -> bool:
        """See `Dialect`."""
        return request.stream is True

    def whole(self, request: ResponseRequest, parts: Sequence[ModelAnswered], created: int) -> dict[str, Any]:
        """See `Dialect`."""
        return whole_response(_head(request, created), parts[0], seal=_seals(request))

    def events(self, request: ResponseRequest, created: int) -> ResponseStream:
        """See `Dialect`."""
        return ResponseStream(_head(request, created), seal=_seals(request))

    def error(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
        """See `Dialect`."""
        code = "previous_response_not_found" if field == "continues" else code
        return openai.error(message, status, WIRE_NAMES.get(field, field), code)


def _seals(request: ResponseRequest) -> bool:
    return SEALED_REASONING in (request.include or ())


def _tools(request: ResponseRequest) -> list[ResponseTool]:
    for index, one in enumerate(request.tools or ()):
        if one.defer_loading:
            raise refused(f"tools[{index}].defer_loading")
        check_sendable(one.output_schema, f"tools[{index}].output_schema")  # sent back with the answer
    return request.tools or []


def _constraint(text: ResponseText | None) -> Constraint | None:
    match text.format if text else None:
        case ResponseSchemaFormat(schema=schema):
            return openai.json_constraint(schema, "text.format.schema")
        case ResponseJsonFormat():
            return openai.json_constraint({"type": "object"}, "text.format")
    return None


def _sampling(request: ResponseRequest) -> dict[str, Any]:
    stated = {
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
    return {name: value for name, value in stated.items() if value is not None}


def _head(request: ResponseRequest, created: int) -> dict[str, Any]:
    """What a response repeats of its request; its own part is id, status, output and usage."""
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
