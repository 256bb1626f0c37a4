"""Messages of a `ModelRequest`, built turn by turn: content, tool calls, and tool results that answer them.

Text alone becomes a string, so that equal messages compare equal; with images the content is a list of parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.fields import RequestStruct
from areal_actors.messages import ITEM_REFERENCE

Content = str | list[dict[str, Any]]
"""Text, or parts `{"type": "text", "text"}` and `{"type": "image", "url"}`."""


class ContentBlock(Protocol):
    """A block of a message as a protocol has it."""

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        ...


class Turn(Protocol):
    """A message, or an item of one, as a protocol has it."""

    def add_to(self, builder: MessageBuilder, where: str) -> Any:
        """Add the turn's messages; errors name a field below `where`."""
        ...


class TextContent(RequestStruct):
    """Text; each protocol adds its tag and the fields that clients send with it."""

    text: str

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        return text_part(self.text)


def text_part(text: str) -> dict[str, Any]:
    """Return a content part of text."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    """Return a content part of an image by its URL, which may be a base64 `data:` URL."""
    return {"type": "image", "url": url}


def content(body: str | Iterable[ContentBlock] | None) -> Content:
    """Return a message's content: joined to a string if all blocks are text; null is the empty text."""
    if isinstance(body, str):
        return body
    parts = [block.part() for block in body or ()]
    return text_of(parts) if all(part["type"] == "text" for part in parts) else parts


def text_of(content: Content) -> str:
    """Return the text of content, without its images."""
    return (
        content if isinstance(content, str) else "".join([part["text"] for part in content if part["type"] == "text"])
    )


def tool_call(identifier: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call of an assistant message."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


class MessageBuilder:
    """Messages so far, and the tool calls in them that have no result yet.

    A conversation that continues a stored one may begin with results: their calls are not in the request.
    """

    def __init__(self, system: Content | None = None, *, continued: bool = False) -> None:
        self.messages: list[dict[str, Any]] = []
        self.has_references = False
        self.is_plain = True
        """True while every content is a string, and no message of the model has a name."""
        self._open: set[str] = set()
        self._continued = continued
        if system:
            self.add("system", system)

    def add(self, role: str, text: Content) -> dict[str, Any]:
        """Add a message and return it."""
        message: dict[str, Any] = {"role": role, "content": text}
        if not isinstance(text, str):
            self.is_plain = False
        self.messages.append(message)
        return message

    def assistant(self) -> dict[str, Any]:
        """Return the last message if it is the model's, or else a new one."""
        return (
            self.messages[-1]
            if self.messages and self.messages[-1]["role"] == "assistant"
            else self.add("assistant", "")
        )

    def add_call(self, message: dict[str, Any], identifier: str, name: str, arguments: str, field: str) -> None:
        """Add a tool call to the message.

        Raises:
            RequestError: another pending call has this id.
        """
        if identifier in self._open:
            raise RequestError(
                f"'{field}' is {identifier!r:.80}, the id of another pending tool call; give each a unique id", field
            )
        self._open.add(identifier)
        self._continued = False
        message.setdefault("tool_calls", []).append(tool_call(identifier, name, arguments))

    def refer(self, identifier: str, field: str) -> dict[str, Any]:
        """Return a value that stands for a part of the earlier answer with this interaction or tool call."""
        self.has_references = True
        return {ITEM_REFERENCE: identifier, "field": field}

    def add_result(self, identifier: str, result: Content, field: str) -> dict[str, Any]:
        """Add the message with the result of a tool call and return it.

        Raises:
            RequestError: no pending call has this id.
        """
        if identifier not in self._open and not self._continued:
            raise RequestError(
                f"'{field}' is {identifier!r:.80}, but no pending tool call before it has this id; send the call too",
                field,
            )
        self._open.discard(identifier)
        message = self.add("tool", result)
        message["tool_call_id"] = identifier
        return message

    def copy(self) -> MessageBuilder:
        """Return a builder with the same messages, to which others are added."""
        other = MessageBuilder(continued=self._continued)
        other.messages, other._open = [*self.messages], {*self._open}
        other.has_references, other.is_plain = self.has_references, self.is_plain
        return other

    def add_all(self, turns: Iterable[Turn], field: str, *, start: int = 0) -> tuple[dict[str, Any], ...]:
        """Add the turns of the conversation, an array at this field from `start` on, and return all messages."""
        for index, turn in enumerate(turns, start):
            turn.add_to(self, f"{field}[{index}]")
        return tuple(self.messages)
