"""The messages of OpenAI chat completions, and their conversion to the gateway's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from areal_actors.gateway.protocols.content import Content, content, image_part, text_part
from areal_actors.gateway.protocols.fields import Ignored, RequestStruct, Text, Unsupported
from areal_actors.gateway.protocols.tools import PendingToolCalls, tool_call


class TextPart(RequestStruct, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: Ignored = None
    prompt_cache_breakpoint: Ignored = None

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        return text_part(self.text)


class ImageUrl(RequestStruct):
    """The URL of an image."""

    url: Text
    detail: Ignored = None


class ImagePart(RequestStruct, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl
    cache_control: Ignored = None
    prompt_cache_breakpoint: Ignored = None

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        return image_part(self.image_url.url)


class ChatFunctionCall(RequestStruct):
    """Name and arguments of a function call."""

    name: Text
    arguments: str
    parsed_arguments: Ignored = None


class ChatToolCall(RequestStruct):
    """A tool call of an assistant message."""

    id: Text
    function: ChatFunctionCall
    type: Literal["function"] = "function"
    index: Ignored = None


class SystemMessage(RequestStruct, tag_field="role", tag="system"):
    """Instructions for the whole conversation."""

    content: str | list[TextPart] | None
    name: str | None = None

    def message(self) -> dict[str, Any]:
        """Convert to a message."""
        return _message("system", self.content, self.name)


class DeveloperMessage(SystemMessage, tag_field="role", tag="developer"):
    """The newer name of a system message."""


class UserMessage(RequestStruct, tag_field="role", tag="user"):
    """A message of the user."""

    content: str | list[TextPart | ImagePart] | None
    name: str | None = None

    def message(self) -> dict[str, Any]:
        """Convert to a message."""
        return _message("user", self.content, self.name)


class ToolMessage(RequestStruct, tag_field="role", tag="tool"):
    """The result of a tool call."""

    content: str | list[TextPart | ImagePart] | None
    tool_call_id: Text
    name: str | None = None

    def message(self) -> dict[str, Any]:
        """Convert to a message."""
        return {**_message("tool", self.content, self.name), "tool_call_id": self.tool_call_id}


class AssistantMessage(RequestStruct, tag_field="role", tag="assistant"):
    """An earlier answer of the model, sent back by the client."""

    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    name: str | None = None
    refusal: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None
    annotations: Ignored = None
    parsed: Ignored = None
    provider_specific_fields: Ignored = None
    thinking_blocks: Ignored = None

    def message(self) -> dict[str, Any]:
        """Convert to a message."""
        message = _message("assistant", self.content, self.name)
        if reasoning := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [tool_call(call.id, call.function.name, call.function.arguments) for call in self.tool_calls]
        return message


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


def chat_messages(messages: Sequence[ChatMessage]) -> tuple[dict[str, Any], ...]:
    """Convert the conversation.

    Raises:
        RequestError: a tool call's id is not unique, or a tool result has no matching call.
    """
    calls = PendingToolCalls()
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            calls.add_result(message.tool_call_id, f"messages[{index}].tool_call_id")
        elif isinstance(message, AssistantMessage) and message.tool_calls:
            for number, call in enumerate(message.tool_calls):
                calls.add_call(call.id, f"messages[{index}].tool_calls[{number}].id")
    return tuple([message.message() for message in messages])


def _message(role: str, body: str | Sequence[TextPart | ImagePart] | None, name: str | None) -> dict[str, Any]:
    text: Content = body if isinstance(body, str) else content(part.part() for part in body or ())
    return {"role": role, "content": text, "name": name} if name else {"role": role, "content": text}
