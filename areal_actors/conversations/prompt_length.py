"""Prompts that cannot fit are refused by their length, before they are tokenised: a megabyte takes up to a second."""

from __future__ import annotations

from typing import NamedTuple

from areal_actors.conversations.continuation import ChatText
from areal_actors.errors import PromptTooLong
from areal_actors.values import pack_ids


class Room(NamedTuple):
    """What a prompt may have."""

    context: int
    """Tokens of prompt and answer together."""
    field: str
    """Of the request, that is to be shortened."""


def encoded(chat: ChatText, text: str, room: Room | None, *, after: int = 0) -> bytes:
    """Token ids (u32) of a text that follows `after` tokens.

    Raises:
        PromptTooLong: it is certain, without all of it being tokenised, that there is no room for them.
    """
    if room is not None and (least := chat.least_tokens(text, room.context - after)):
        raise PromptTooLong(after + least, room.context, room.field, at_least=True)
    return pack_ids(chat.encode(text))
