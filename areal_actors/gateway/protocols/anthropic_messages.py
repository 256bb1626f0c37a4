"""The messages of Anthropic's dialect, and their conversion to the gateway's messages.

Each tool result in a user message becomes a separate message, in place. The result of a failed tool begins with
`Error: `, since the gateway's messages have no error field.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.gateway.protocols.base import JSON
from areal_actors.gateway.protocols.call_fields import check_encodable
from areal_actors.gateway.protocols.fields import RequestStruct, Text
from areal_actors.gateway.protocols.message_builder import (
    Content,
    ContentBlock,
    MessageBuilder,
    TextContent,
    content,
    image_part,
    text_of,
    text_part,
)

ERROR_PREFIX = "Error: "
"""Prefix of a failed tool's result, unless it already begins with `error`."""


class TextBlock(TextContent, tag_field="type", tag="text", ignored=("cache_control", "citations")):
    """Text."""


class Base64Source(RequestStruct, tag_field="type", tag="base64"):
    """An image embedded in the request."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Text


class UrlSource(RequestStruct, tag_field="type", tag="url"):
    """An image given by its URL."""

    url: Annotated[Text, msgspec.Meta(description="URL of the image.")]


class ImageBlock(
    RequestStruct, tag_field="type", tag="image", ignored=("cache_control",), unsupported=("transformations",)
):
    """An image."""

    source: Base64Source | UrlSource

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        source = self.source
        return image_part(
            source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"
        )


class ThinkingBlock(RequestStruct, tag_field="type", tag="thinking", ignored=("signature", "cache_control")):
    """Reasoning of the model; the signature is not verified."""

    thinking: str


class ToolUseBlock(
    RequestStruct, tag_field="type", tag="tool_use", ignored=("cache_control", "caller", "toolset_name")
):
    """A tool call of the model."""

    id: Text
    name: Text
    input: dict[str, Any]


class ToolReferenceBlock(RequestStruct, tag_field="type", tag="tool_reference", ignored=("cache_control",)):
    """The name of a tool that the client found for the model; the prompt has all tools already."""

    tool_name: Text

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        return text_part(self.tool_name)


class ToolResultBlock(RequestStruct, tag_field="type", tag="tool_result", ignored=("cache_control", "toolset_name")):
    """The result of a tool call."""

    tool_use_id: Text
    content: str | list[TextBlock | ImageBlock | ToolReferenceBlock] | None = None
    is_error: bool | None = None

    def result(self) -> Content:
        """Return the content of the message with the result."""
        result = content(self.content)
        if self.is_error and not text_of(result).lower().startswith("error"):
            return ERROR_PREFIX + result if isinstance(result, str) else [text_part(ERROR_PREFIX), *result]
        return result


class UserTurn(RequestStruct, tag_field="role", tag="user"):
    """Content of the user, and results of tools."""

    content: str | list[TextBlock | ImageBlock | ToolResultBlock]

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        if isinstance(self.content, str):
            builder.add("user", self.content)
            return
        blocks: list[ContentBlock] = []
        for index, block in enumerate(self.content):
            if not isinstance(block, ToolResultBlock):
                blocks.append(block)
                continue
            if blocks:
                builder.add("user", content(blocks))
                blocks = []
            builder.add_result(block.tool_use_id, block.result(), f"{where}.content[{index}].tool_use_id")
        if blocks or not self.content:
            builder.add("user", content(blocks))


class AssistantTurn(RequestStruct, tag_field="role", tag="assistant"):
    """An earlier answer of the model, sent back by the client."""

    content: str | list[TextBlock | ThinkingBlock | ToolUseBlock]

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        if isinstance(self.content, str):
            builder.add("assistant", self.content)
            return
        message = builder.add("assistant", content(block for block in self.content if isinstance(block, TextBlock)))
        if reasoning := "".join([block.thinking for block in self.content if isinstance(block, ThinkingBlock)]):
            message["reasoning_content"] = reasoning
        for index, block in enumerate(self.content):
            if isinstance(block, ToolUseBlock):
                check_encodable(block.input, f"{where}.content[{index}].input")
                builder.add_call(
                    message, block.id, block.name, JSON.encode(block.input).decode(), f"{where}.content[{index}].id"
                )


class SystemTurn(RequestStruct, tag_field="role", tag="system"):
    """Instructions that apply from here on."""

    content: str | list[TextBlock]

    def add_to(self, builder: MessageBuilder, where: str) -> None:  # noqa: ARG002
        """See `Turn`."""
        builder.add("system", content(self.content))


AnthropicMessage = UserTurn | AssistantTurn | SystemTurn


def has_cache_hints(
    system: str | Sequence[TextBlock] | None, tools: Sequence[Any], messages: Sequence[AnthropicMessage]
) -> bool:
    """Return True if a block or a tool has `cache_control`."""
    blocks = chain.from_iterable(message.content for message in messages if not isinstance(message.content, str))
    own = chain(system if not isinstance(system, str) and system else (), blocks)
    return any(one.get("cache_control") for one in tools) or any(getattr(block, "cache_control", None) for block in own)
