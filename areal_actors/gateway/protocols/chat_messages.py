"""The messages of OpenAI chat completions, and their conversion to the gateway's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from areal_actors.gateway.protocols.content import TextContent, content, image_part
from areal_actors.gateway.protocols.fields import RequestStruct, Text
from areal_actors.gateway.protocols.tools import PendingToolCalls, tool_call


class TextPart(TextContent, tag_field="type", tag="text", ignored=("cache_control", "prompt_cache_breakpoint")):
    """Text."""


class ImageUrl(RequestStruct, ignored=("detail",)):
    """The URL of an image."""

    url: Text


class ImagePart(RequestStruct, tag_field="type", tag="image_url", ignored=("cache_control", "prompt_cache_breakpoint")):
    """An image."""

    image_url: ImageUrl

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        return image_part(self.image_url.url)


class ChatFunctionCall(RequestStruct, ignored=("parsed_arguments",)):
    """Name and arguments of a function call."""

    name: Text
    arguments: str


class ChatToolCall(RequestStruct, ignored=("index",)):
    """A tool call of an assistant message."""

    id: Text
    function: ChatFunctionCall
    type: Literal["function"] = "function"


class UserMessage(RequestStruct, tag_field="role", tag="user"):
    """A message of the user."""

    template_role: ClassVar[str] = "user"
    """Role for the chat template."""
    content: str | Sequence[TextPart | ImagePart] | None
    name: str | None = None

    def message(self) -> dict[str, Any]:
        """Convert to a message."""
        message = {"role": self.template_role, "content": content(self.content)}
        return message | {"name": self.name} if self.name else message


class SystemMessage(UserMessage, tag_field="role", tag="system"):
    """Instructions for the whole conversation."""

    template_role: ClassVar[str] = "system"
    content: str | Sequence[TextPart] | None


class DeveloperMessage(SystemMessage, tag_field="role", tag="developer"):
    """The newer name of a system message."""


class ToolMessage(UserMessage, tag_field="role", tag="tool"):
    """The result of a tool call."""

    template_role: ClassVar[str] = "tool"
    tool_call_id: Text

    def message(self) -> dict[str, Any]:
        """Convert to a message."""
        return super().message() | {"tool_call_id": self.tool_call_id}


class AssistantMessage(
    UserMessage,
    tag_field="role",
    tag="assistant",
    ignored=("annotations", "parsed", "provider_specific_fields", "thinking_blocks"),
    unsupported=("refusal", "audio", "function_call"),
):
    """An earlier answer of the model, sent back by the client."""

    template_role: ClassVar[str] = "assistant"
    content: str | Sequence[TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | None = None

    def message(self) -> dict[str, Any]:
        """Convert to a message."""
        message = super().message()
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
        elif isinstance(message, AssistantMessage):
            for number, call in enumerate(message.tool_calls or ()):
                calls.add_call(call.id, f"messages[{index}].tool_calls[{number}].id")
    return tuple([message.message() for message in messages])
