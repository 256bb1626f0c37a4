"""The messages of Anthropic's dialect, and the same in our own words.

A user message may hold results of tools: each becomes a message of its own, in place. The result of a tool that failed says
so in its text, since our messages have no other place for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.dialects.content import content, image_part, text_part
from areal_actors.dialects.fields import Refused, Text, Unused, Wire, check_sendable
from areal_actors.dialects.tools import JSON, OpenCalls, tool_call

FAILED = "Error: "
"""Begins the text of a failed tool's result, unless that says `error` already."""


class TextBlock(Wire, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: Unused = None
    citations: Unused = None

    def part(self) -> dict[str, Any]:
        """In our words."""
        return text_part(self.text)


class Base64Source(Wire, tag_field="type", tag="base64"):
    """An image in the request itself."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Text

    def url(self) -> str:
        """As an address."""
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(Wire, tag_field="type", tag="url"):
    """An image elsewhere."""

    address: Annotated[Text, msgspec.Meta(description="Where it is.")] = msgspec.field(name="url")

    def url(self) -> str:
        """As an address."""
        return self.address


class ImageBlock(Wire, tag_field="type", tag="image"):
    """An image."""

    source: Base64Source | UrlSource
    cache_control: Unused = None
    transformations: Refused = None

    def part(self) -> dict[str, Any]:
        """In our words."""
        return image_part(self.source.url())


class ThinkingBlock(Wire, tag_field="type", tag="thinking"):
    """What the model thought; the signature needs no proof here."""

    thinking: str
    signature: Unused = None
    cache_control: Unused = None


class ToolUseBlock(Wire, tag_field="type", tag="tool_use"):
    """The model called a tool."""

    id: Text
    name: Text
    input: dict[str, Any]
    cache_control: Unused = None
    caller: Unused = None
    toolset_name: Refused = None


class ToolResultBlock(Wire, tag_field="type", tag="tool_result"):
    """What the tool returned."""

    tool_use_id: Text
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None
    cache_control: Unused = None
    toolset_name: Refused = None

    def message(self) -> dict[str, Any]:
        """In our words."""
        parts = [text_part(self.content)] if isinstance(self.content, str) else [block.part() for block in self.content or ()]
        said = "".join([part["text"] for part in parts if part["type"] == "text"])
        if self.is_error and not said.lower().startswith("error"):
            parts = [text_part(FAILED), *parts]
        return {"role": "tool", "content": content(parts), "tool_call_id": self.tool_use_id}


class UserTurn(Wire, tag_field="role", tag="user"):
    """What the user and the tools say."""

    content: str | list[TextBlock | ImageBlock | ToolResultBlock]

    def messages(self, calls: OpenCalls, where: str) -> list[dict[str, Any]]:
        """In our words.

        Raises:
            RequestError: a result belongs to no call.
        """
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        found: list[dict[str, Any]] = []
        said: list[dict[str, Any]] = []
        for index, block in enumerate(self.content):
            if isinstance(block, ToolResultBlock):
                calls.answered(block.tool_use_id, f"{where}.content[{index}].tool_use_id")
                if said:
                    found.append({"role": "user", "content": content(said)})
                    said = []
                found.append(block.message())
            else:
                said.append(block.part())
        if said or not found:
            found.append({"role": "user", "content": content(said)})
        return found


class AssistantTurn(Wire, tag_field="role", tag="assistant"):
    """What the model said, as clients send it back."""

    content: str | list[TextBlock | ThinkingBlock | ToolUseBlock]

    def messages(self, calls: OpenCalls, where: str) -> list[dict[str, Any]]:
        """In our words.

        Raises:
            RequestError: a tool call's id is not its own, or its input has an integer of more than 64 bits.
        """
        if isinstance(self.content, str):
            return [{"role": "assistant", "content": self.content}]
        called = []
        for index, block in enumerate(self.content):
            if isinstance(block, ToolUseBlock):
                calls.called(block.id, f"{where}.content[{index}].id")
                check_sendable(block.input, f"{where}.content[{index}].input")
                called.append(tool_call(block.id, block.name, JSON.encode(block.input).decode()))
        text = "".join([block.text for block in self.content if isinstance(block, TextBlock)])
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning := "".join([block.thinking for block in self.content if isinstance(block, ThinkingBlock)]):
            message["reasoning_content"] = reasoning
        if called:
            message["tool_calls"] = called
        return [message]


class SystemTurn(Wire, tag_field="role", tag="system"):
    """What holds from here on."""

    content: str | list[TextBlock]

    def messages(self, calls: OpenCalls, where: str) -> list[dict[str, Any]]:  # noqa: ARG002
        """In our words."""
        return [{"role": "system", "content": system_text(self.content)}]


Turn = UserTurn | AssistantTurn | SystemTurn


def system_text(system: str | Sequence[TextBlock]) -> str:
    """A system prompt as one text."""
    return system if isinstance(system, str) else "".join([block.text for block in system])


def turn_messages(turns: Sequence[Turn], system: str | Sequence[TextBlock] | None, *, continued: bool) -> tuple[dict[str, Any], ...]:
    """The conversation in our words; the system prompt becomes the first message.

    Raises:
        RequestError: a tool call's id is not its own, or a result belongs to no call.
    """
    calls = OpenCalls(continued=continued)
    found = [{"role": "system", "content": text}] if system and (text := system_text(system)) else []
    for index, turn in enumerate(turns):
        found += turn.messages(calls, f"messages[{index}]")
    return tuple(found)
