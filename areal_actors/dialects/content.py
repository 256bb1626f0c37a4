"""Content of messages: text alone becomes a string, so that it compares by value; with images it stays a list of parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Content = str | list[dict[str, Any]]
"""Text, or parts `{"type": "text", "text"}` and `{"type": "image", "url"}`."""


def text_part(text: str) -> dict[str, Any]:
    """Text beside images."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    """An image by its address, or in base64 as a `data:` address."""
    return {"type": "image", "url": url}


def content(parts: Iterable[dict[str, Any]]) -> Content:
    """These parts as a message has them."""
    found = list(parts)
    if all(part["type"] == "text" for part in found):
        return "".join(part["text"] for part in found)
    return found
