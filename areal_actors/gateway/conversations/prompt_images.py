"""Images in messages and in prompts.

Each placeholder that a chat template writes becomes one for every token of its image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from areal_actors.core.errors import RequestError
from areal_actors.core.values import ImageRef

IMAGES = frozenset({"images"})
"""Feature of conversations with images: no placeholder history stands for them."""


def has_images(messages: Sequence[Mapping[str, Any]]) -> bool:
    """True if a message has parts other than text; text alone is a string."""
    return any(isinstance(message.get("content"), list) for message in messages)


def images_in(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the image parts of messages."""
    for message in messages:
        if isinstance(content := message.get("content"), list):
            yield from (part for part in content if part["type"] == "image")


def with_images(
    parent_ids: bytes, ids: bytes, before: tuple[ImageRef, ...], parts: Iterator[Mapping[str, Any]], placeholder: int
) -> tuple[bytes, tuple[ImageRef, ...]]:
    """Expand the placeholders of new tokens; returns them, and all images of the prompt.

    Args:
        parent_ids: tokens before the new ones, u32.
        ids: the new ones, with one placeholder for each image.
        before: images in `parent_ids`.
        parts: images of the new messages, as the gateway has stored them.
        placeholder: its token id.

    Raises:
        RequestError: placeholders and images differ in number.
    """
    column, shown = np.frombuffer(ids, dtype="<u4"), list(parts)
    places = np.flatnonzero(column == placeholder)
    written = int((np.frombuffer(parent_ids, dtype="<u4") == placeholder).sum())
    if written != sum(image.tokens for image in before):
        raise RequestError(
            "an earlier answer has the text that stands for an image in prompts; start a new conversation", "messages"
        )
    if len(places) != len(shown):
        fault = f"the chat template writes {len(places)} placeholders for {len(shown)} images"
        remedy = (
            "leave the placeholder's text out of the messages, or use the model's own chat template"
            " (gateway.chat_template)"
        )
        raise RequestError(f"'messages': {fault}; {remedy}", "messages")
    counts = np.ones(len(column), dtype=np.int64)
    counts[places] = [part["tokens"] for part in shown]
    starts = (np.cumsum(counts) - counts)[places] + len(parent_ids) // 4
    images = [
        ImageRef(digest=part["digest"], start=int(start), grid=tuple(part["grid"]), tokens=part["tokens"])
        for start, part in zip(starts, shown, strict=True)
    ]
    return np.repeat(column, counts).tobytes(), (*before, *images)


def suffix_images(images: Sequence[ImageRef], prefix_tokens: int) -> tuple[ImageRef, ...]:
    """Images of a prompt that follow its prefix, counted from the end of it."""
    return tuple(
        msgspec.structs.replace(image, start=image.start - prefix_tokens)
        for image in images
        if image.start >= prefix_tokens
    )
