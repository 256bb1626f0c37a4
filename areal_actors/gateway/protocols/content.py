"""Content of messages: text alone becomes a string, so that equal messages compare equal; with images it is a list of parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from areal_actors.gateway.protocols.fields import RequestStruct

Content = str | list[dict[str, Any]]
"""Text, or parts `{"type": "text", "text"}` and `{"type": "image", "url"}`."""


class ContentBlock(Protocol):
    """A block of a message as a protocol has it."""

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
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


def text_of(found: Content) -> str:
    """Return the text of content, without its images."""
    return found if isinstance(found, str) else "".join([part["text"] for part in found if part["type"] == "text"])
