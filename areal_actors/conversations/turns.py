"""The calls of a session as the conversation tree keeps them, and the paths of tokens that they form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from areal_actors.conversations.continuation import ChatText
from areal_actors.values import Interaction, TokenColumns, unpack_ids
from bus.message import FrozenMeta

CANCELLED = "cancelled"
"""Finish reason of a call whose client left while it was streamed."""


class Prompt(msgspec.Struct, metaclass=FrozenMeta):
    """The tokens to continue, and what is needed to recognise a call that continues them."""

    token_ids: bytes
    """u32, all of them."""
    suffix_ids: bytes
    """u32, those after the prefix's prompt and completion; all without a prefix."""
    parent: str = ""
    """Id of the interaction whose conversation this continues."""
    prefix: str = ""
    """Id of the interaction whose tokens these begin with."""
    suffix_text: str = ""
    """The text of `suffix_ids`, where decoding them would not give it."""
    messages: bytes = b""
    """JSON of the request's messages that the prefix does not hold; all without one."""
    message_count: int = 0
    request_digest: bytes = b""
    """Stands for the request's messages as they were sent."""
    value_digest: bytes = b""
    """Stands for them by value."""
    settings: bytes = b""
    """Stands for tools and template settings."""
    tools: bytes = b""
    """JSON of the tools; without a prefix."""
    features: frozenset[str] = frozenset()
    checked: int = 0
    """How many messages there were when the conversation was last rendered whole."""
    opens_reasoning: bool = False
    """The prompt ends where the model's reasoning begins."""
    cached_tokens: int = 0
    """Tokens taken over from the prefix."""
    split: str = ""
    """Why these do not begin with the parent's tokens, or why a later call of a conversation has no parent."""


class Turn(msgspec.Struct, metaclass=FrozenMeta):
    """One completed model call, with what is needed to continue it."""

    interaction: Interaction
    answer: dict[str, Any]
    """What the model said, as a message."""
    prompt: Prompt
    """Without `token_ids`: they are those of the path that leads here."""
    streamed: bool = False
    """Its client may have left before the end, and have seen only the beginning of the answer."""


def recorded(
    identifier: str,
    prompt: Prompt,
    completion: TokenColumns,
    finish_reason: str,
    answer: dict[str, Any],
    *,
    worker: str = "",
    trained: bool = True,
    streamed: bool = False,
) -> Turn:
    """A call as the tree keeps it, sampled by this worker; `trained = False` keeps it as context only."""
    interaction = Interaction(
        id=identifier,
        parent=prompt.parent,
        prefix=prompt.prefix,
        prompt_suffix=prompt.suffix_ids,
        completion=completion,
        finish_reason=finish_reason,
        worker=worker,
        trained=trained,
    )
    return Turn(interaction=interaction, answer=answer, prompt=msgspec.structs.replace(prompt, token_ids=b""), streamed=streamed)


def path_to(identifier: str, turns: dict[str, Turn]) -> list[Turn]:
    """The turns whose tokens lead to this one, the first first."""
    path = [turns[identifier]]
    while path[-1].interaction.prefix:
        path.append(turns[path[-1].interaction.prefix])
    return path[::-1]


def token_ids_of(path: Sequence[Turn]) -> bytes:
    """Prompt and completion ids along a path, u32."""
    return b"".join([part for turn in path for part in (turn.interaction.prompt_suffix, turn.interaction.completion.token_ids)])


def text_of(path: Sequence[Turn], chat: ChatText) -> str:
    """Prompts and completions along a path as text, special tokens included."""
    return "".join(
        (turn.prompt.suffix_text or chat.decode(unpack_ids(turn.interaction.prompt_suffix), skip_special=False))
        + chat.decode(turn.interaction.completion.ids_array().tolist(), skip_special=False)
        for turn in path
    )


def messages_of(path: Sequence[Turn]) -> list[dict[str, Any]]:
    """What was said along a path, the last answer included."""
    return [message for turn in path for message in (*msgspec.json.decode(turn.prompt.messages or b"[]"), turn.answer)]
