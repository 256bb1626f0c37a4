"""Anthropic's dialects: `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from areal_actors.core.config import Fraction, NonNegativeFloat
from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.anthropic_answer import MessageAnswer, TokenCount, error_body
from areal_actors.gateway.protocols.anthropic_messages import (
    AnthropicMessage,
    AssistantTurn,
    TextBlock,
    has_cache_hints,
)
from areal_actors.gateway.protocols.base import Dialect, named_event
from areal_actors.gateway.protocols.call_fields import (
    NAMED_TOOL,
    json_constraint,
    sampling,
    template_kwargs,
    tool_definition,
    tool_fields,
)
from areal_actors.gateway.protocols.client_tools import anthropic_tool, screen_note
from areal_actors.gateway.protocols.fields import (
    Flag,
    Ignored,
    RequestStruct,
    Seed,
    Text,
    TokenLimit,
    TopK,
    TopP,
    convert,
    ignored_fields,
    unsupported_error,
)
from areal_actors.gateway.protocols.hosted_tools import ANTHROPIC, hosted_tools, ignored_tools, is_hosted
from areal_actors.gateway.protocols.message_builder import MessageBuilder, content
from areal_actors.messages import ModelRequest

BETA = ("anthropic-beta",)
TOOL_HINTS = ("strict", "eager_input_streaming", "defer_loading", "input_examples")
"""Fields of tools that are accepted without effect; a tool whose loading is deferred is in the prompt from the
start."""


class MessagesTool(RequestStruct, ignored=("cache_control", *TOOL_HINTS)):
    """A tool that the client runs."""

    name: Text
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class ProviderTool(
    RequestStruct, ignored=("cache_control", "allowed_callers", "max_characters", "enable_zoom", *TOOL_HINTS)
):
    """A tool that the client runs and whose schema the provider knows."""

    type: Text
    name: Text
    display_width_px: int | None = None
    display_height_px: int | None = None
    display_number: int | None = None


class AutoChoice(RequestStruct, tag_field="type", tag="auto"):
    """The model may call tools."""

    tool_choice: ClassVar[str] = "auto"
    disable_parallel_tool_use: Flag = None


class AnyChoice(AutoChoice, tag_field="type", tag="any"):
    """The model must call a tool."""

    tool_choice: ClassVar[str] = "required"


class NoChoice(AutoChoice, tag_field="type", tag="none"):
    """The model must not call tools."""

    tool_choice: ClassVar[str] = "none"


class NamedChoice(AutoChoice, tag_field="type", tag="tool"):
    """The model must call this tool."""

    name: Text


class ThinkingAdaptive(RequestStruct, tag_field="type", tag="adaptive"):
    """Thinking is left to the chat template's default."""

    thinks: ClassVar[bool | None] = None
    display: str | None = None


class ThinkingEnabled(ThinkingAdaptive, tag_field="type", tag="enabled"):
    """Thinking is on; `budget_tokens` has no effect."""

    thinks: ClassVar[bool | None] = True
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)]


class ThinkingDisabled(RequestStruct, tag_field="type", tag="disabled"):
    """Thinking is off."""

    thinks: ClassVar[bool | None] = False


class MessagesFormat(RequestStruct, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    schema: dict[str, Any]


class OutputConfig(RequestStruct, ignored=("task_budget",)):
    """Format of the answer, and reasoning effort."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessagesFormat | None = None


class ThreadCreate(RequestStruct, tag_field="type", tag="create"):
    """Later calls may continue this one; this gateway always allows it."""


class ThreadContinue(RequestStruct, tag_field="type", tag="continue"):
    """This call continues an earlier one and inherits its system prompt and tools."""

    previous_message_id: Text


class CountTokensRequest(RequestStruct, ignored=("speed", "billing_policy", "compaction", "mcp_servers")):
    """A request to `/v1/messages/count_tokens`."""

    messages: Annotated[list[AnthropicMessage], msgspec.Meta(min_length=1)]
    model: str = "default"
    system: str | list[TextBlock] | None = None
    tools: (
        Annotated[list[dict[str, Any]], msgspec.Meta(description="`MessagesTool`, or a hosted tool without effect.")]
        | None
    ) = None
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    output_format: MessagesFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: Ignored = None
    context_management: Ignored = None


class MessagesRequest(
    CountTokensRequest,
    ignored=(
        "metadata",
        "service_tier",
        "inference_geo",
        "diagnostics",
        "container",
        "fallback_credit_token",
        "fallbacks",
    ),
):
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


def _call(request: MessagesRequest, session: str) -> ModelRequest:
    continues = request.thread.previous_message_id if isinstance(request.thread, ThreadContinue) else ""
    return ModelRequest(
        session=session,
        continues=continues,
        inherits=bool(continues),
        sampling=sampling(request, max_tokens=request.max_tokens, stop=request.stop_sequences),
        stream=request.stream is True,
        **_conversation(request, continued=bool(continues)),
    )


def _count_call(request: CountTokensRequest, session: str) -> ModelRequest:
    return ModelRequest(session=session, count_only=True, **_conversation(request, continued=False))


def _conversation(request: CountTokensRequest, *, continued: bool) -> dict[str, Any]:
    """Return the fields that both requests share: messages, tools, answer format and thinking."""
    if isinstance(request.messages[-1], AssistantTurn):
        raise unsupported_error(
            "messages",
            "the last message has the role assistant, and a prefilled answer cannot be continued: end with a user"
            " message",
        )
    choice, thinking = request.tool_choice or AutoChoice(), request.thinking or ThinkingAdaptive()
    tool_choice = NAMED_TOOL + choice.name if isinstance(choice, NamedChoice) else choice.tool_choice
    if isinstance(choice, NamedChoice) and any(
        choice.name == tool.get("name") for tool in hosted_tools(request.tools or (), ANTHROPIC)
    ):
        raise unsupported_error(
            "tool_choice", f"{choice.name!r:.80} is a tool that the provider runs: send a tool that the client runs"
        )
    output = request.output_config or OutputConfig()
    if output.format and request.output_format:
        raise RequestError(
            "'output_format' and 'output_config.format' are the same setting; set only one", "output_format"
        )
    field, shape = (
        ("output_config.format", output.format) if output.format else ("output_format", request.output_format)
    )
    return {
        "messages": MessageBuilder(content(request.system), continued=continued).add_all(request.messages, "messages"),
        **tool_fields(_tools(request), tool_choice, continued=continued),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
        "constraint": json_constraint(shape.schema, f"{field}.schema") if shape else None,
        "template_kwargs": template_kwargs(request.chat_template_kwargs, output.effort, thinks=thinking.thinks),
    }


def _tools(request: CountTokensRequest) -> Iterator[dict[str, Any]]:
    for index, definition in enumerate(request.tools or ()):
        kind = definition.get("type")
        if (hosted := anthropic_tool(kind)) is not None:
            given = convert(definition, ProviderTool, f"tools[{index}]")
            yield hosted.definition(given.name, screen_note(given.display_width_px, given.display_height_px))
            continue
        if kind not in (None, "custom"):
            if not is_hosted(kind, ANTHROPIC):
                raise unsupported_error(
                    f"tools[{index}].type", f"it is {kind!r:.60}: send tools that the client runs, with an input_schema"
                )
            continue
        tool = convert(definition, MessagesTool, f"tools[{index}]")
        yield tool_definition(tool.name, tool.description, tool.input_schema)


def _tool_type(tool: dict[str, Any]) -> type[RequestStruct] | None:
    if tool.get("type") in (None, "custom"):
        return MessagesTool
    return ProviderTool if anthropic_tool(tool.get("type")) is not None else None


def _ignored_names(request: CountTokensRequest) -> list[str]:
    names = [*ignored_fields(request), *ignored_fields(request.output_config, "output_config")]
    names += [name for name in ("cache_control", "context_management") if getattr(request, name) is not None]
    if request.cache_control is None and has_cache_hints(request.system, request.tools or (), request.messages):
        names.append("cache_control")
    if isinstance(request.thinking, ThinkingEnabled):
        names.append("thinking.budget_tokens")
    if isinstance(request.thinking, ThinkingAdaptive) and request.thinking.display:
        names.append("thinking.display")
    return [*names, *ignored_tools(request.tools or (), ANTHROPIC, TOOL_HINTS)]


MESSAGES = Dialect(
    name="messages",
    path="messages",
    summary="Anthropic messages",
    request_type=MessagesRequest,
    call=_call,
    answer=lambda request, _: MessageAnswer(request.model, reports_edits=request.context_management is not None),
    error=error_body,
    ignored=_ignored_names,
    element_types={"tools": _tool_type},
    ignored_headers=BETA,
    keep_alive=named_event("ping"),
)
COUNT_TOKENS = Dialect(
    name="count_tokens",
    path="messages/count_tokens",
    summary="Count the prompt tokens of an Anthropic request",
    request_type=CountTokensRequest,
    call=_count_call,
    answer=lambda request, _: TokenCount(request.model),
    error=error_body,
    ignored=_ignored_names,
    element_types={"tools": _tool_type},
    ignored_headers=BETA,
)
