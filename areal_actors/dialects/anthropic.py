"""Anthropic's dialect: `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.config import Fraction, NonNegativeFloat
from areal_actors.dialects import anthropic_answer as answer
from areal_actors.dialects.anthropic_messages import AssistantTurn, TextBlock, Turn, turn_messages
from areal_actors.dialects.fields import (
    Flag,
    Refused,
    RefusedList,
    Seed,
    Text,
    TokenLimit,
    TopK,
    TopP,
    Unused,
    Wire,
    decode,
    effort_kwargs,
    refused,
    template_kwargs,
)
from areal_actors.dialects.openai_common import json_constraint
from areal_actors.dialects.tools import NAMED, check_tools, tool
from areal_actors.errors import RequestError
from areal_actors.messages import CallModel, ModelAnswered


class MessagesTool(Wire):
    """A tool that the client runs."""

    name: Text
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    input_examples: RefusedList | None = None
    defer_loading: Flag = None
    strict: Unused = None
    cache_control: Unused = None
    eager_input_streaming: Unused = None


class AutoChoice(Wire, tag_field="type", tag="auto"):
    """The model may call tools."""

    disable_parallel_tool_use: Flag = None


class AnyChoice(Wire, tag_field="type", tag="any"):
    """The model has to call a tool."""

    disable_parallel_tool_use: Flag = None


class NamedChoice(Wire, tag_field="type", tag="tool"):
    """The model has to call this tool."""

    name: Text
    disable_parallel_tool_use: Flag = None


class NoChoice(Wire, tag_field="type", tag="none"):
    """The model may not call tools."""

    disable_parallel_tool_use: Flag = None


class ThinkingEnabled(Wire, tag_field="type", tag="enabled"):
    """The model thinks; how long is its own affair."""

    budget_tokens: Annotated[int, msgspec.Meta(ge=1)]
    display: Literal["summarized"] | None = None


class ThinkingAdaptive(Wire, tag_field="type", tag="adaptive"):
    """The model thinks when the template makes it."""

    display: Literal["summarized"] | None = None


class ThinkingDisabled(Wire, tag_field="type", tag="disabled"):
    """The model does not think."""


class MessagesFormat(Wire, tag_field="type", tag="json_schema"):
    """JSON of a schema."""

    schema: dict[str, Any]


class OutputConfig(Wire):
    """What the answer is like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessagesFormat | None = None


class ThreadCreate(Wire, tag_field="type", tag="create"):
    """Later calls may continue this one; all may here."""


class ThreadContinue(Wire, tag_field="type", tag="continue"):
    """This call continues an earlier one, whose system prompt and tools hold."""

    previous_message_id: Text


class CountTokensRequest(Wire):
    """A request to `/v1/messages/count_tokens`."""

    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    model: str = "default"
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    output_format: MessagesFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: Unused = None
    speed: Unused = None
    billing_policy: Unused = None
    context_management: Refused = None
    compaction: Refused = None
    mcp_servers: RefusedList | None = None


class MessagesRequest(CountTokensRequest):
    """A request to `/v1/messages`."""

    max_tokens: TokenLimit
    temperature: NonNegativeFloat | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    stop_sequences: list[Text] | None = None
    stream: Flag = None
    thread: ThreadCreate | ThreadContinue | None = None
    metadata: Unused = None
    service_tier: Unused = None
    inference_geo: Unused = None
    diagnostics: Unused = None
    container: Refused = None
    fallbacks: RefusedList | None = None
    fallback_credit_token: Refused = None


DECODER = msgspec.json.Decoder(MessagesRequest)
COUNT_DECODER = msgspec.json.Decoder(CountTokensRequest)


class Messages:
    """The dialect of `/v1/messages`."""

    name = "messages"
    path = "messages"
    request_type = MessagesRequest

    def decode(self, body: bytes) -> MessagesRequest:
        """See `Dialect`."""
        return decode(DECODER, body)

    def call(self, request: MessagesRequest, session: str) -> CallModel:
        """See `Dialect`."""
        continues = request.thread.previous_message_id if isinstance(request.thread, ThreadContinue) else ""
        sampling = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": None if request.top_k is None else max(request.top_k, 0),
            "min_p": request.min_p,
            "seed": request.seed,
            "stop": tuple(request.stop_sequences or ()) or None,
        }
        return CallModel(
            session=session,
            continues=continues,
            inherits=bool(continues),
            sampling={name: value for name, value in sampling.items() if value is not None},
            stream=request.stream is True,
            **_conversation(request, continued=bool(continues)),
        )

    def streams(self, request: MessagesRequest) -> bool:
        """See `Dialect`."""
        return request.stream is True

    def whole(self, request: MessagesRequest, parts: Sequence[ModelAnswered], created: int) -> dict[str, Any]:  # noqa: ARG002
        """See `Dialect`."""
        return answer.whole_message(request.model, parts[0])

    def events(self, request: MessagesRequest, created: int) -> answer.MessageStream:  # noqa: ARG002
        """See `Dialect`."""
        return answer.MessageStream(request.model)

    def error(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:  # noqa: ARG002 - its clients go by the words
        """See `Dialect`."""
        return answer.error_body(message, status, field)


class CountTokens:
    """The dialect of `/v1/messages/count_tokens`; it never streams."""

    name = "count_tokens"
    path = "messages/count_tokens"
    request_type = CountTokensRequest

    def decode(self, body: bytes) -> CountTokensRequest:
        """See `Dialect`."""
        return decode(COUNT_DECODER, body)

    def call(self, request: CountTokensRequest, session: str) -> CallModel:
        """See `Dialect`."""
        return CallModel(session=session, count_only=True, **_conversation(request, continued=False))

    def streams(self, request: CountTokensRequest) -> bool:  # noqa: ARG002
        """See `Dialect`."""
        return False

    def whole(self, request: CountTokensRequest, parts: Sequence[ModelAnswered], created: int) -> dict[str, Any]:  # noqa: ARG002
        """See `Dialect`."""
        return answer.count(parts)

    def events(self, request: CountTokensRequest, created: int) -> answer.MessageStream:  # noqa: ARG002
        """See `Dialect`."""
        return answer.MessageStream(request.model)

    def error(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:  # noqa: ARG002 - its clients go by the words
        """See `Dialect`."""
        return answer.error_body(message, status, field)


def _conversation(request: CountTokensRequest, *, continued: bool) -> dict[str, Any]:
    """What both requests say: messages, tools, answer format and thinking."""
    if isinstance(request.messages[-1], AssistantTurn):
        raise refused(
            "messages", "the last message is the assistant's, and an answer begun by the client cannot be continued: end with the user's"
        )
    for index, one in enumerate(request.tools or ()):
        if one.defer_loading:
            raise refused(f"tools[{index}].defer_loading")
    tools = tuple([tool(one.name, one.description, one.input_schema) for one in request.tools or ()])
    choice = request.tool_choice
    tool_choice = _tool_choice(choice)
    check_tools(tools, tool_choice, continued=continued)
    output = request.output_config or OutputConfig()
    field, shape = ("output_config.format", output.format) if output.format else ("output_format", request.output_format)
    if output.format and request.output_format:
        raise RequestError("'output_format' and 'output_config.format' say the same; give one of them", "output_format")
    return {
        "messages": turn_messages(request.messages, request.system, continued=continued),
        "tools": tools,
        "tool_choice": tool_choice,
        "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
        "constraint": json_constraint(shape.schema, f"{field}.schema") if shape else None,
        "template_kwargs": template_kwargs(
            request.chat_template_kwargs, **effort_kwargs(output.effort), enable_thinking=_thinks(request.thinking)
        ),
    }


def _tool_choice(choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None) -> str:
    match choice:
        case NamedChoice(name=name):
            return NAMED + name
        case AnyChoice():
            return "required"
        case NoChoice():
            return "none"
    return "auto"


def _thinks(thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None) -> bool | None:
    match thinking:
        case ThinkingEnabled():
            return True
        case ThinkingDisabled():
            return False
    return None
