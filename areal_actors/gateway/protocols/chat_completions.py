"""OpenAI chat completions, `/v1/chat/completions`.

Reasoning is in `reasoning_content`, as servers of open models have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.gateway.protocols import openai_common as openai
from areal_actors.gateway.protocols.base import Dialect
from areal_actors.gateway.protocols.call_fields import json_constraint, sampling, template_kwargs, tool_fields
from areal_actors.gateway.protocols.chat_messages import ChatMessage
from areal_actors.gateway.protocols.chat_tools import (
    ChatTool,
    Choice,
    chat_definitions,
    chat_tool_type,
    choice_fields,
    custom_call,
    custom_names,
)
from areal_actors.gateway.protocols.custom_tools import custom_input, is_complete
from areal_actors.gateway.protocols.fields import (
    Flag,
    RequestStruct,
    TokenLimit,
    TopLogprobs,
    UnsupportedList,
    ignored_fields,
)
from areal_actors.gateway.protocols.message_builder import MessageBuilder, tool_call
from areal_actors.messages import ModelRequest, ModelResponsePart, ToolCallPart


class NamedSchema(RequestStruct, ignored=("description", "strict")):
    """A schema with its name."""

    schema: dict[str, Any]
    name: str = ""


class SchemaFormat(RequestStruct, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: NamedSchema


class ChatRequest(
    openai.ChoiceFields,
    ignored=(
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "verbosity",
        "moderation",
        "prediction",
        "web_search_options",
    ),
    unsupported=("audio",),
):
    """A request to `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: Flag = None
    response_format: openai.TextFormat | openai.JsonFormat | SchemaFormat | None = None
    logprobs: Flag = None
    top_logprobs: TopLogprobs | None = None
    reasoning_effort: openai.Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    store: Flag = None
    functions: UnsupportedList | None = None


class ChatAnswer(openai.ChoicesAnswer):
    """Messages or their deltas; the first delta of each choice has the role."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, request: ChatRequest, created: int) -> None:
        super().__init__(request, created)
        self._begun: set[int] = set()
        self._custom = custom_names(request.tools) if request.tools else frozenset[str]()
        self._inputs: dict[tuple[int, int], str] = {}
        """Arguments of calls of custom tools that are not complete, by choice and index of the call."""

    def choice(self, part: ModelResponsePart) -> dict[str, Any]:
        """See `ChoicesAnswer`."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": part.text or (None if part.tool_calls else ""),
            "refusal": None,
        }
        if part.reasoning:
            message["reasoning_content"] = part.reasoning
        if part.tool_calls:
            message["tool_calls"] = [self._call(call) for call in part.tool_calls]
        return {"message": message, "logprobs": _logprobs(part)}

    def delta(self, part: ModelResponsePart) -> dict[str, Any]:
        """See `ChoicesAnswer`."""
        delta: dict[str, Any] = {}
        if part.choice not in self._begun:
            self._begun.add(part.choice)
            delta = {"role": "assistant", "content": None if part.tool_calls else ""}
        if part.reasoning:
            delta["reasoning_content"] = part.reasoning
        if part.text:
            delta["content"] = part.text
        if (part.tool_calls or self._inputs) and (calls := [*self._call_deltas(part)]):
            delta["tool_calls"] = calls
        return {"delta": delta, "logprobs": _logprobs(part)}

    def _call(self, call: ToolCallPart) -> dict[str, Any]:
        if call.name in self._custom:
            return custom_call(call.id, call.name, custom_input(call.arguments))
        return tool_call(call.id, call.name, call.arguments)

    def _call_deltas(self, part: ModelResponsePart) -> Iterator[dict[str, Any]]:
        """Yield the deltas of calls.

        The text of a custom tool's call comes when its arguments, JSON around it, are complete.
        """
        for call in part.tool_calls:
            key = (part.choice, call.index)
            if call.id and call.name in self._custom:
                self._inputs[key] = ""
                yield {"index": call.index, **custom_call(call.id, call.name, "")}
            if key in self._inputs:
                self._inputs[key] += call.arguments
                if is_complete(self._inputs[key]):
                    yield _input_delta(call.index, self._inputs.pop(key))
            elif call.id:
                yield {"index": call.index, **tool_call(call.id, call.name, call.arguments)}
            else:
                yield {"index": call.index, "function": {"arguments": call.arguments}}
        if part.finish_reason:
            for choice, index in [key for key in self._inputs if key[0] == part.choice]:
                yield _input_delta(index, self._inputs.pop((choice, index)))


def _input_delta(index: int, arguments: str) -> dict[str, Any]:
    return {"index": index, "custom": {"input": custom_input(arguments)}}


def chat_call(request: ChatRequest, session: str, builder: MessageBuilder | None = None) -> ModelRequest:
    """Convert a request to a model call; `builder` has its messages, if they are converted already.

    Raises:
        RequestError: a field is not supported.
    """
    if builder is None:
        builder = MessageBuilder()
        builder.add_all(request.messages, "messages")
    choice, allowed = choice_fields(request.tool_choice)
    return ModelRequest(
        session=session,
        messages=tuple(builder.messages),
        plain_text=builder.is_plain,
        **tool_fields(chat_definitions(request.tools) if request.tools else (), choice, allowed=allowed),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        constraint=_constraint(request),
        template_kwargs=template_kwargs(request.chat_template_kwargs, request.reasoning_effort),
        sampling=_sampling(request),
        choices=request.n or 1,
        logprobs=request.logprobs is True,
        stream=request.stream is True,
        store=request.store is not False,
    )


def _constraint(request: ChatRequest) -> Constraint | None:
    match request.response_format:
        case SchemaFormat(json_schema=named):
            return json_constraint(named.schema, "response_format.json_schema.schema")
        case openai.JsonFormat():
            return openai.ANY_JSON
    return None


def _sampling(request: ChatRequest) -> dict[str, Any]:
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise RequestError(
            "'max_tokens' and 'max_completion_tokens' are the same setting; set only one", "max_completion_tokens"
        )
    if request.top_logprobs and not request.logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    max_tokens = request.max_tokens or request.max_completion_tokens
    return sampling(request, max_tokens=max_tokens, stop=request.stop, top_logprobs=request.top_logprobs or None)


def chat_ignored(request: ChatRequest, *, plain_text: bool = False) -> list[str]:
    """Return what the client sent and is accepted without effect; `plain_text` if all contents are strings."""
    names = ignored_fields(request)
    if request.stream_options is not None:
        names += ignored_fields(request.stream_options, "stream_options")
    tools = request.tools or ()
    messages = () if plain_text else request.messages
    mixed = [message.content for message in messages if message.content and not isinstance(message.content, str)]
    if (tools or mixed) and any(getattr(one, "cache_control", None) for one in chain(tools, *mixed)):
        names.append("cache_control")
    if any(tool.function and tool.function.strict for tool in tools):
        names.append("tools[].function.strict")
    return names


def _logprobs(part: ModelResponsePart) -> dict[str, Any] | None:
    return {"content": openai.logprobs(part.logprobs), "refusal": None} if part.logprobs else None


CHAT = Dialect(
    name="chat_completions",
    path="chat/completions",
    summary="OpenAI chat completions",
    request_type=ChatRequest,
    call=chat_call,
    answer=ChatAnswer,
    error=openai.error,
    ignored=chat_ignored,
    element_types={"tools": chat_tool_type},
)
