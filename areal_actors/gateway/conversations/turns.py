"""Model calls of a session as nodes of the conversation tree, and their token paths."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from areal_actors.core.ignored_fields import effective_fields
from areal_actors.core.values import ImageRef, Interaction, TokenColumns, unpack_ids
from areal_actors.gateway.conversations.kept_messages import unpack_json
from areal_actors.gateway.conversations.prompt_images import suffix_images
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_bus.message import FrozenMeta

CANCELLED = "cancelled"
"""Finish reason of a call whose client left while it was streamed."""
EMPTY: Mapping[str, Any] = MappingProxyType({})


class Prompt(msgspec.Struct, metaclass=FrozenMeta):
    """Prompt tokens, and the data to recognise a call that continues them."""

    suffix_ids: bytes
    """u32, the tokens after the prefix; all of them without a prefix."""
    parent: str = ""
    """Id of the interaction whose conversation this continues."""
    parent_by_id: bool = False
    """True if the client named it, or the id of a tool call of its."""
    prefix: str = ""
    """Id of the interaction whose tokens are a prefix of these."""
    suffix_text: str = ""
    """Text of `suffix_ids`, if decoding them would not restore it."""
    messages: bytes = b""
    """The request's messages after the prefix, packed (`kept_messages.py`); all of them without a prefix."""
    message_count: int = 0
    request_digest: bytes = b""
    """Hash of the request's messages as sent."""
    value_digest: bytes = b""
    """Hash of the messages by value."""
    settings: bytes = b""
    """Hash of tools and template settings."""
    tools: bytes = b""
    """The tools, packed; only without a prefix."""
    features: frozenset[str] = frozenset()
    checked: int = 0
    """Number of messages when the conversation was last rendered in full."""
    opens_reasoning: bool = False
    """True if the prompt opens the model's reasoning."""
    cached_tokens: int = 0
    """Number of tokens of the prefix."""
    earlier: Mapping[str, ConversationTurn] = EMPTY
    """Calls of the session, by id, from which the tokens of the prefix are read; none without a prefix."""
    images: tuple[ImageRef, ...] = ()
    """Images in the whole prompt, by position."""
    prefix_break_reason: str = ""
    """Reason for which the prompt does not begin with the parent's tokens, or for which a later call has no parent."""

    @property
    def token_ids(self) -> bytes:
        """All tokens, u32; read from the calls before, which takes time with the length of the conversation."""
        return token_ids_of(path_to(self.prefix, self.earlier)) + self.suffix_ids if self.prefix else self.suffix_ids

    @property
    def token_count(self) -> int:
        """Number of all tokens."""
        return self.cached_tokens + len(self.suffix_ids) // 4

    def first_position(self) -> int:
        """First position that a call with this prompt computes.

        It is that of the last token of its prefix, which was sampled but not fed.
        """
        return max(self.cached_tokens - 1, 0)


class ConversationTurn(msgspec.Struct, metaclass=FrozenMeta):
    """One completed model call, with the data to continue it."""

    interaction: Interaction
    answer: dict[str, Any]
    """The model's answer as a message."""
    prompt: Prompt
    """Without the calls before: the path to this turn has them."""
    streamed: bool = False
    """True if the answer was streamed: its client may have received only a prefix of it."""
    client_session: str = ""
    """Name of the conversation at the client, if the client sends one."""

    @property
    def token_count(self) -> int:
        """Number of tokens of prompt and completion."""
        return self.prompt.token_count + len(self.interaction.completion)


def record_turn(
    identifier: str,
    prompt: Prompt,
    completion: TokenColumns,
    finish_reason: str,
    answer: dict[str, Any],
    *,
    worker: str = "",
    trained: bool = True,
    temperature: float | None = None,
    streamed: bool = False,
    routes: bytes = b"",
    call_problem: str = "",
    ignored: Sequence[str] = (),
    role: str = "",
) -> ConversationTurn:
    """Create the turn of a call that `worker` sampled; `trained = False` keeps it as context only."""
    interaction = Interaction(
        id=identifier,
        parent=prompt.parent,
        prefix=prompt.prefix,
        role=role,
        prompt_suffix=prompt.suffix_ids,
        completion=completion,
        finish_reason=sys.intern(finish_reason),
        worker=sys.intern(worker),
        trained=trained,
        temperature=temperature,
        routes=routes,
        call_problem=call_problem,
        fields_ignored=bool(ignored) and bool(effective_fields(ignored)),
        images=prompt.images and suffix_images(prompt.images, prompt.cached_tokens),
    )
    kept = msgspec.structs.replace(prompt, earlier=EMPTY) if prompt.earlier else prompt
    return ConversationTurn(interaction=interaction, answer=answer, prompt=kept, streamed=streamed)


def path_to(identifier: str, turns: Mapping[str, ConversationTurn]) -> list[ConversationTurn]:
    """Turns on the token path from the root to this one."""
    path = [turns[identifier]]
    while path[-1].interaction.prefix:
        path.append(turns[path[-1].interaction.prefix])
    return path[::-1]


def token_ids_of(path: Sequence[ConversationTurn]) -> bytes:
    """Prompt and completion ids along a path, u32."""
    return b"".join(
        [part for turn in path for part in (turn.interaction.prompt_suffix, turn.interaction.completion.token_ids)]
    )


def text_of(path: Sequence[ConversationTurn], chat: ChatTokenizer) -> str:
    """Prompts and completions along a path as text, special tokens included."""
    return "".join(prompt_text(turn, chat) + completion_text(turn, chat) for turn in path)


def prompt_text(turn: ConversationTurn, chat: ChatTokenizer) -> str:
    """Text of the prompt after its prefix."""
    return turn.prompt.suffix_text or chat.decode(unpack_ids(turn.interaction.prompt_suffix), skip_special=False)


def completion_text(turn: ConversationTurn, chat: ChatTokenizer) -> str:
    """Text of the completion, special tokens included."""
    return chat.text_of(turn.interaction.completion.ids_array().tolist())


def messages_of(path: Sequence[ConversationTurn]) -> list[dict[str, Any]]:
    """Messages along a path, the last answer included."""
    return [message for turn in path for message in (*unpack_json(turn.prompt.messages), turn.answer)]
