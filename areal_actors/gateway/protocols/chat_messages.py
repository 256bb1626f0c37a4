"""The messages of OpenAI chat completions, and their conversion to the gateway's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from areal_actors.gateway.protocols.chat_tools import missing
from areal_actors.gateway.protocols.custom_tools import custom_arguments
from areal_actors.gateway.protocols.fields import RequestStruct, Text
from areal_actors.gateway.protocols.message_builder import MessageBuilder, TextContent, content, image_part


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


class ChatCustomCall(RequestStruct):
    """Name and input of a custom tool's call."""

    name: Text
    input: str


class ChatToolCall(RequestStruct, ignored=("index",)):
    """A tool call of an assistant message."""

    id: Text
    function: ChatFunctionCall | None = None
    custom: ChatCustomCall | None = None
    type: Literal["function", "custom"] = "function"

    def add_to(self, builder: MessageBuilder, message: dict[str, Any], where: str) -> None:
        """Add the call to its message.

        Raises:
            RequestError: it lacks the object of its type, or another pending call has its id.
        """
        if self.type == "custom" and self.custom is not None:
            builder.add_call(message, self.id, self.custom.name, custom_arguments(self.custom.input), f"{where}.id")
        elif self.type == "function" and self.function is not None:
            builder.add_call(message, self.id, self.function.name, self.function.arguments, f"{where}.id")
        else:
            raise missing(f"{where}.{self.type}")


class NamedMessage(RequestStruct):
    """Fields of all messages."""

    template_role: ClassVar[str] = "user"
    """Role for the chat template."""
    content: str | Sequence[TextPart | ImagePart] | None
    name: str | None = None

    def add_to(self, builder: MessageBuilder, where: str) -> dict[str, Any]:
        """See `Turn`; returns the message."""
        message = self.add_unnamed(builder, where)
        if self.name:
            message["name"] = self.name
            builder.is_plain = builder.is_plain and message["role"] != "assistant"
        return message

    def add_unnamed(self, builder: MessageBuilder, where: str) -> dict[str, Any]:  # noqa: ARG002
        """Add the message without its name."""
        return builder.add(self.template_role, content(self.content))


class UserMessage(NamedMessage, tag_field="role", tag="user"):
    """A message of the user."""


class SystemMessage(NamedMessage, tag_field="role", tag="system"):
    """Instructions for the whole conversation."""

    template_role: ClassVar[str] = "system"
    content: str | Sequence[TextPart] | None


class DeveloperMessage(SystemMessage, tag_field="role", tag="developer"):
    """The newer name of a system message."""


class ToolMessage(NamedMessage, tag_field="role", tag="tool"):
    """The result of a tool call."""

    tool_call_id: Text

    def add_unnamed(self, builder: MessageBuilder, where: str) -> dict[str, Any]:
        """Add the message without its name."""
        return builder.add_result(self.tool_call_id, content(self.content), f"{where}.tool_call_id")


class AssistantMessage(
    NamedMessage,
    tag_field="role",
    tag="assistant",
    ignored=("annotations", "parsed", "provider_specific_fields", "thinking_blocks"),
    unsupported=("function_call",),
):
    """An earlier answer of the model, sent back by the client."""

    content: str | Sequence[TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ChatToolCall] | None = None

    def add_unnamed(self, builder: MessageBuilder, where: str) -> dict[str, Any]:
        """Add the message without its name."""
        message = builder.add("assistant", content(self.content) or self.refusal or "")
        if reasoning := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = reasoning
        for index, call in enumerate(self.tool_calls or ()):
            call.add_to(builder, message, f"{where}.tool_calls[{index}]")
        return message


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
