"""Parent lookup: finds the earlier call of a session that a new one continues, independently of the tokens.

A client may name the call (`previous_response_id`). Otherwise the messages are matched, from the last one backwards: by
the ids of tool calls that the gateway issued, which clients keep even if they rewrite the arguments, and by value.
Changes that the client made since are reported, because the parent's tokens cannot be extended then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_actors.gateway.conversations.message_digests import MessageDigests
from areal_actors.gateway.conversations.message_equality import (
    MessageDict,
    first_difference,
    is_answer_prefix,
    same_answer,
)
from areal_actors.gateway.conversations.session_turns import SessionTurns, tool_call_ids
from areal_actors.gateway.conversations.turns import ConversationTurn, messages_of, path_to
from areal_actors.messages import ModelRequest

PARTIAL = "the client kept only the beginning of an answer that was streamed"


class Lineage(NamedTuple):
    """The parent of a call."""

    turn: ConversationTurn | None
    differs: str = ""
    """Difference of the messages from the parent's conversation, or reason for which a call with earlier answers has no
    parent."""
    by_id: bool = False
    """True if the client named the call, or the id of a tool call of its."""


NO_PARENT = Lineage(None)


def find_parent(turns: SessionTurns, request: ModelRequest, history: MessageDigests) -> Lineage:
    """Find the call that these messages, with their digests in `history`, continue.

    It is the one that the client names, or the deepest match by ids or values.
    """
    messages = request.messages
    if request.continues:
        turn = turns[request.continues]
        parent_messages = messages_of(path_to(request.continues, turns))
        place = first_difference(parent_messages, messages)
        return Lineage(turn, "" if place == len(parent_messages) else _describe_change(place, messages), by_id=True)
    by_id, by_value = _by_id(turns, messages), _by_value(turns, history)
    if by_id is not None and (by_value is None or by_id[1] > by_value[0].prompt.message_count):
        turn, place = by_id
        return Lineage(turn, _difference(turn, place, history), by_id=True)
    if by_value is None:
        return Lineage(None, _missing_parent_reason(turns, messages)) if turns else NO_PARENT
    return Lineage(*by_value)


def _missing_parent_reason(turns: SessionTurns, messages: Sequence[MessageDict]) -> str:
    if not turns or not any(message.get("role") == "assistant" for message in messages):
        return ""
    last = turns[next(reversed(turns))]
    if last.prompt.message_count == 0:
        return ""
    place = first_difference(messages_of(path_to(last.interaction.id, turns)), messages)
    return (
        "these messages are the beginning of an earlier call's"
        if place >= len(messages)
        else _describe_change(place, messages)
    )


def _by_id(turns: SessionTurns, messages: Sequence[MessageDict]) -> tuple[ConversationTurn, int] | None:
    """The call that issued the last known tool call id in the messages, and the index of that message."""
    for place in range(len(messages) - 1, -1, -1) if turns.issued else ():
        for identifier in tool_call_ids(messages[place]):
            if (turn := turns.issued.get(identifier)) is not None:
                return turn, place
    return None


def _by_value(turns: SessionTurns, history: MessageDigests) -> tuple[ConversationTurn, str] | None:
    """The longest call that the messages continue, the latest of several, and the difference of its answer.

    The difference is between the answer as sampled and as sent back.
    """
    for turn in turns.shorter_than(len(history.messages)):
        sent = history.messages[turn.prompt.message_count]
        partial = turn.streamed and is_answer_prefix(turn.answer, sent)
        if ((same := same_answer(turn.answer, sent)) or partial) and history.is_request_of(turn):
            return turn, "" if same else PARTIAL
    return None


def _difference(turn: ConversationTurn, place: int, history: MessageDigests) -> str:
    """Difference of the messages from the conversation of a call whose tool call id occurs at this index."""
    if place != turn.prompt.message_count or not history.is_request_of(turn):
        return "the messages before an answer, which its tool call's id names, are not what they were"
    return "" if same_answer(turn.answer, history.messages[place]) else _describe_change(place, history.messages)


def _describe_change(place: int, messages: Sequence[Mapping[str, Any]]) -> str:
    role = messages[place].get("role") if place < len(messages) else "missing"
    return f"message {place} ({role}) is not what it was in the call before"
