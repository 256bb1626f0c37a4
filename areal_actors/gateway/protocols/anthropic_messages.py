"""The messages of Anthropic's dialect, and their conversion to the gateway's messages.

Each tool result in a user message becomes a separate message, in place. The result of a failed tool begins with `Error: `,
since the gateway's messages have no error field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.gateway.protocols.base import JSON
from areal_actors.gateway.protocols.call_fields import check_encodable
from areal_actors.gateway.protocols.content import ContentBlock, TextContent, content, image_part, text_of, text_part
from areal_actors.gateway.protocols.fields import RequestStruct, Text
from areal_actors.gateway.protocols.tools import PendingToolCalls, tool_call

ERROR_PREFIX = "Error: "
"""Prefix of a failed tool's result, unless it already begins with `error`."""


class TextBlock(TextContent, tag_field="type", tag="text", ignored=("cache_control", "citations")):
    """Text."""


class Base64Source(RequestStruct, tag_field="type", tag="base64"):
    """An image embedded in the request."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Text

    def url(self) -> str:
        """Return the image's URL."""
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(RequestStruct, tag_field="type", tag="url"):
    """An image given by its URL."""

    address: Annotated[Text, msgspec.Meta(description="URL of the image.")] = msgspec.field(name="url")

    def url(self) -> str:
        """Return the image's URL."""
        return self.address


class ImageBlock(RequestStruct, tag_field="type", tag="image", ignored=("cache_control",), unsupported=("transformations",)):
    """An image."""

    source: Base64Source | UrlSource

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        return image_part(self.source.url())


class ThinkingBlock(RequestStruct, tag_field="type", tag="thinking", ignored=("signature", "cache_control")):
    """Reasoning of the model; the signature is not verified."""

    thinking: str


class ToolUseBlock(RequestStruct, tag_field="type", tag="tool_use", ignored=("cache_control", "caller"), unsupported=("toolset_name",)):
    """A tool call of the model."""

    id: Text
    name: Text
    input: dict[str, Any]


class ToolResultBlock(RequestStruct, tag_field="type", tag="tool_result", ignored=("cache_control",), unsupported=("toolset_name",)):
    """The result of a tool call."""

    tool_use_id: Text
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None

    def message(self) -> dict[str, Any]:
        """Convert to a message."""
        result = content(self.content)
        if self.is_error and not text_of(result).lower().startswith("error"):
            result = ERROR_PREFIX + result if isinstance(result, str) else [text_part(ERROR_PREFIX), *result]
        return {"role": "tool", "content": result, "tool_call_id": self.tool_use_id}


class UserTurn(RequestStruct, tag_field="role", tag="user"):
    """Content of the user, and results of tools."""

    content: str | list[TextBlock | ImageBlock | ToolResultBlock]

    def messages(self, calls: PendingToolCalls, where: str) -> list[dict[str, Any]]:
        """Convert to messages.

        Raises:
            RequestError: a tool result has no matching call.
        """
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        found: list[dict[str, Any]] = []
        blocks: list[ContentBlock] = []
        for index, block in enumerate(self.content):
            if isinstance(block, ToolResultBlock):
                calls.add_result(block.tool_use_id, f"{where}.content[{index}].tool_use_id")
                if blocks:
                    found.append({"role": "user", "content": content(blocks)})
                    blocks = []
                found.append(block.message())
            else:
                blocks.append(block)
        if blocks or not found:
            found.append({"role": "user", "content": content(blocks)})
        return found


class AssistantTurn(RequestStruct, tag_field="role", tag="assistant"):
    """An earlier answer of the model, sent back by the client."""

    content: str | list[TextBlock | ThinkingBlock | ToolUseBlock]

    def messages(self, calls: PendingToolCalls, where: str) -> list[dict[str, Any]]:
        """Convert to messages.

        Raises:
            RequestError: a tool call's id is not unique, or its input has an integer of more than 64 bits.
        """
        if isinstance(self.content, str):
            return [{"role": "assistant", "content": self.content}]
        called = []
        for index, block in enumerate(self.content):
            if isinstance(block, ToolUseBlock):
                calls.add_call(block.id, f"{where}.content[{index}].id")
                check_encodable(block.input, f"{where}.content[{index}].input")
                called.append(tool_call(block.id, block.name, JSON.encode(block.input).decode()))
        message: dict[str, Any] = {"role": "assistant", "content": content(block for block in self.content if isinstance(block, TextBlock))}
        if reasoning := "".join([block.thinking for block in self.content if isinstance(block, ThinkingBlock)]):
            message["reasoning_content"] = reasoning
        if called:
            message["tool_calls"] = called
        return [message]


class SystemTurn(RequestStruct, tag_field="role", tag="system"):
    """Instructions that apply from here on."""

    content: str | list[TextBlock]

    def messages(self, calls: PendingToolCalls, where: str) -> list[dict[str, Any]]:  # noqa: ARG002
        """Convert to messages."""
        return [{"role": "system", "content": content(self.content)}]


AnthropicMessage = UserTurn | AssistantTurn | SystemTurn


def convert_turns(
    turns: Sequence[AnthropicMessage], system: str | Sequence[TextBlock] | None, *, continued: bool
) -> tuple[dict[str, Any], ...]:
    """Convert the conversation; the system prompt becomes the first message.

    Raises:
        RequestError: a tool call's id is not unique, or a tool result has no matching call.
    """
    calls = PendingToolCalls(continued=continued)
    found: list[dict[str, Any]] = [{"role": "system", "content": text}] if (text := content(system)) else []
    for index, turn in enumerate(turns):
        found += turn.messages(calls, f"messages[{index}]")
    return tuple(found)
