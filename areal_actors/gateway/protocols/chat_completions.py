"""OpenAI chat completions: `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.gateway.protocols import openai_common as openai
from areal_actors.gateway.protocols.chat_messages import ChatMessage, chat_messages
from areal_actors.gateway.protocols.fields import (
    Flag,
    Ignored,
    RequestStruct,
    Text,
    TokenLimit,
    TopLogprobs,
    Unsupported,
    UnsupportedList,
    decode,
    effort_kwargs,
    template_kwargs,
)
from areal_actors.gateway.protocols.tools import NAMED_TOOL, check_tools, tool_call, tool_definition
from areal_actors.messages import ModelRequest, ModelResponsePart, ToolCallPart


class ChatFunction(RequestStruct):
    """A function that the model may call."""

    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Ignored = None


class ChatTool(RequestStruct, tag_field="type", tag="function"):
    """A tool."""

    function: ChatFunction
    cache_control: Ignored = None


class ChatChoiceFunction(RequestStruct):
    """The name of a function."""

    name: Text


class ChatToolChoice(RequestStruct, tag_field="type", tag="function"):
    """The model must call this tool."""

    function: ChatChoiceFunction


class TextFormat(RequestStruct, tag_field="type", tag="text"):
    """Free text."""


class JsonFormat(RequestStruct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(RequestStruct):
    """A schema with its name."""

    schema: dict[str, Any]
    name: str = ""
    description: Ignored = None
    strict: Ignored = None


class SchemaFormat(RequestStruct, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: NamedSchema


class ChatRequest(openai.SamplingFields):
    """A request to `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChatToolChoice | None = None
    parallel_tool_calls: Flag = None
    response_format: TextFormat | JsonFormat | SchemaFormat | None = None
    logprobs: Flag = None
    top_logprobs: TopLogprobs | None = None
    reasoning_effort: openai.Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Flag = None
    verbosity: Ignored = None
    audio: Unsupported = None
    moderation: Unsupported = None
    prediction: Unsupported = None
    web_search_options: Unsupported = None
    function_call: Unsupported = None
    functions: UnsupportedList | None = None


DECODER = msgspec.json.Decoder(ChatRequest)


class ChatCompletions:
    """The dialect; reasoning is in `reasoning_content` beside `content`, as servers of open models have it."""

    name = "chat_completions"
    path = "chat/completions"
    request_type = ChatRequest

    def decode(self, body: bytes) -> ChatRequest:
        """See `Dialect`."""
        return decode(DECODER, body)

    def call(self, request: ChatRequest, session: str) -> ModelRequest:
        """See `Dialect`."""
        tools = tuple(
            [tool_definition(one.function.name, one.function.description, one.function.parameters) for one in request.tools or ()]
        )
        choice = request.tool_choice
        tool_choice = NAMED_TOOL + choice.function.name if isinstance(choice, ChatToolChoice) else choice or "auto"
        check_tools(tools, tool_choice)
        return ModelRequest(
            session=session,
            messages=chat_messages(request.messages),
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            constraint=_constraint(request),
            template_kwargs=template_kwargs(request.chat_template_kwargs, **effort_kwargs(request.reasoning_effort)),
            sampling=_sampling(request),
            choices=request.n or 1,
            logprobs=request.logprobs is True,
            stream=request.stream is True,
            store=request.store is not False,
        )

    def is_streaming(self, request: ChatRequest) -> bool:
        """See `Dialect`."""
        return request.stream is True

    def response_body(self, request: ChatRequest, parts: Sequence[ModelResponsePart], created: int) -> dict[str, Any]:
        """See `Dialect`."""
        ordered = sorted(parts, key=lambda part: part.choice)
        return {
            "id": ordered[0].interaction,
            "object": "chat.completion",
            "created": created,
            "model": request.model,
            "choices": [_choice(part, many=len(ordered) > 1) for part in ordered],
            "usage": openai.usage(ordered),
        }

    def events(self, request: ChatRequest, created: int) -> ChatStream:
        """See `Dialect`."""
        return ChatStream(request, created)

    def error(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
        """See `Dialect`."""
        return openai.error(message, status, field, code)


class ChatStream(openai.ChunkStream):
    """Chunks of deltas; the first one of each choice has the role."""

    def __init__(self, request: ChatRequest, created: int) -> None:
        with_usage = request.stream_options is not None and request.stream_options.include_usage is True
        super().__init__("chat.completion.chunk", request.model, created, choices=request.n or 1, with_usage=with_usage)
        self._begun: set[int] = set()
        self._calls: set[tuple[int, int]] = set()

    def choice(self, part: ModelResponsePart) -> dict[str, Any]:
        """See `ChunkStream`."""
        delta: dict[str, Any] = {}
        if part.choice not in self._begun:
            self._begun.add(part.choice)
            delta = {"role": "assistant", "content": None if part.tool_calls else ""}
        if part.reasoning:
            delta["reasoning_content"] = part.reasoning
        if part.text:
            delta["content"] = part.text
        if part.tool_calls:
            delta["tool_calls"] = [self._call(part.choice, call) for call in part.tool_calls]
        return {"delta": delta, "logprobs": _logprobs(part)}

    def _call(self, choice: int, call: ToolCallPart) -> dict[str, Any]:
        if (choice, call.index) in self._calls:
            return {"index": call.index, "function": {"arguments": call.arguments}}
        self._calls.add((choice, call.index))
        return {"index": call.index, **tool_call(call.id, call.name, call.arguments)}


def _choice(part: ModelResponsePart, *, many: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": part.text or (None if part.tool_calls else ""), "refusal": None}
    if part.reasoning:
        message["reasoning_content"] = part.reasoning
    if part.tool_calls:
        message["tool_calls"] = [tool_call(call.id, call.name, call.arguments) for call in part.tool_calls]
    choice = {"index": part.choice, "message": message, "finish_reason": part.finish_reason, "logprobs": _logprobs(part)}
    if many:
        choice["interaction_id"] = part.interaction
    return choice


def _logprobs(part: ModelResponsePart) -> dict[str, Any] | None:
    return {"content": openai.logprobs(part.logprobs), "refusal": None} if part.logprobs else None


def _sampling(request: ChatRequest) -> dict[str, Any]:
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise RequestError("'max_tokens' and 'max_completion_tokens' are the same setting; set only one", "max_completion_tokens")
    params = openai.sampling(request, request.max_tokens or request.max_completion_tokens)
    if request.top_logprobs:
        if not request.logprobs:
            raise RequestError("'top_logprobs' needs 'logprobs': true", "top_logprobs")
        params["top_logprobs"] = request.top_logprobs
    return params


def _constraint(request: ChatRequest) -> Constraint | None:
    match request.response_format:
        case SchemaFormat(json_schema=named):
            return openai.json_constraint(named.schema, "response_format.json_schema.schema")
        case JsonFormat():
            return openai.json_constraint({"type": "object"}, "response_format")
    return None
