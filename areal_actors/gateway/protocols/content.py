"""Content of messages: text alone becomes a string, so that equal messages compare equal; with images it is a list of parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Content = str | list[dict[str, Any]]
"""Text, or parts `{"type": "text", "text"}` and `{"type": "image", "url"}`."""


def text_part(text: str) -> dict[str, Any]:
    """Return a content part of text."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    """Return a content part of an image by its URL, which may be a base64 `data:` URL."""
    return {"type": "image", "url": url}


def content(parts: Iterable[dict[str, Any]]) -> Content:
    """Return the parts as a message's content: joined to a string if all are text."""
    found = list(parts)
    if all(part["type"] == "text" for part in found):
        return "".join(part["text"] for part in found)
    return found
