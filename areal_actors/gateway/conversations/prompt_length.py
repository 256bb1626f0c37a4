"""Rejects prompts that are too long before they are fully tokenised: a megabyte takes up to a second."""

from __future__ import annotations

from typing import NamedTuple

from areal_actors.core.errors import PromptTooLong
from areal_actors.core.values import pack_ids
from areal_actors.gateway.conversations.continuation import ChatText


class PromptLimit(NamedTuple):
    """Length limit of a prompt."""

    max_model_len: int
    """Tokens of prompt and answer together."""
    field: str
    """Request field that the error names."""


def encode_within(chat: ChatText, text: str, limit: PromptLimit | None, *, after: int = 0) -> bytes:
    """Token ids (u32) of a text that follows `after` tokens.

    Raises:
        PromptTooLong: a part of the text already exceeds the limit.
    """
    if limit is not None and (least := chat.min_token_count(text, limit.max_model_len - after)):
        raise PromptTooLong(after + least, limit.max_model_len, limit.field, at_least=True)
    return pack_ids(chat.encode(text))
