"""Completed calls of a session with what each new call asks of them, so that a call costs the same after any number."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from areal_actors.gateway.conversations.message_digests import MessageDigests
from areal_actors.gateway.conversations.turns import ConversationTurn
from areal_actors.sequences.credit_links import links_of


class SessionTurns(dict[str, ConversationTurn]):
    """Calls by id, in order of completion; not changed once it is made, since long requests are read in threads."""

    def __init__(self, turns: Iterable[ConversationTurn] = (), before: SessionTurns | None = None) -> None:
        """The calls of `before`, and these after them."""
        super().__init__(before or {})
        self.issued: dict[str, ConversationTurn] = dict(before.issued) if before else {}
        """Calls by the ids of the tool calls in their answers."""
        self.continued: set[str] = set(before.continued) if before else set()
        """Ids of the calls that others continue for credit."""
        self.continued_by_messages: set[str] = set(before.continued_by_messages) if before else set()
        """Those of them whose messages another call continues."""
        self.ends: dict[str, ConversationTurn] = dict(before.ends) if before else {}
        """Calls that none continues, in order of completion."""
        self.by_length: list[ConversationTurn] = list(before.by_length) if before else []
        """By the number of messages of their requests, of equal ones in order of completion."""
        self.last_digests: MessageDigests | None = before.last_digests if before else None
        """Digests of the messages of the last request, from which those of the next go on."""
        for turn in turns:
            self._add(turn)

    def _add(self, turn: ConversationTurn) -> None:
        call = turn.interaction
        self[call.id] = turn
        insort(self.by_length, turn, key=_message_count)
        self.issued.update(dict.fromkeys(tool_call_ids(turn.answer), turn))
        for link in links_of(call):
            self.continued.add(link)
            self.ends.pop(link, None)
            if link == call.parent:
                self.continued_by_messages.add(link)
        if call.id not in self.continued:
            self.ends[call.id] = turn

    @classmethod
    def of(cls, turns: Sequence[ConversationTurn], before: SessionTurns | None) -> SessionTurns:
        """Returns these calls; those of `before`, if the first ones are the same, are not read again."""
        if before is None or tuple(before.values()) != tuple(turns[: len(before)]):
            return cls(turns)
        return cls(turns[len(before) :], before) if len(turns) > len(before) else before

    def shorter_than(self, count: int) -> Iterator[ConversationTurn]:
        """Yield the calls of fewer messages, but not of none: the longest first, of equal ones the last."""
        for place in range(bisect_left(self.by_length, count, key=_message_count) - 1, -1, -1):
            if not _message_count(self.by_length[place]):
                return
            yield self.by_length[place]


def _message_count(turn: ConversationTurn) -> int:
    return turn.prompt.message_count


def tool_call_ids(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of the tool calls in a message of the model."""
    if message.get("role") == "assistant":
        yield from (call["id"] for call in message.get("tool_calls") or () if call.get("id"))
