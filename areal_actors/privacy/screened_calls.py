"""Model calls of a session under the rules of `[log.redaction]`, searched as the model had them: their tokens, decoded.

The tokens are what the log would have, so that nothing which is written escapes the rules. Each call is searched once,
with the end of what it continues: a match may begin in an earlier call.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from areal_actors.gateway.conversations.turns import ConversationTurn, completion_text, prompt_text
from areal_actors.gateway.sessions.table import Session
from areal_actors.privacy.redaction import Redaction
from areal_actors.tokenization.tokenizer import ChatTokenizer

OVERLAP = 256
"""Characters of the call before it with which a call is searched."""


class CallScreen:
    """Searches completed calls."""

    def __init__(self, redaction: Redaction) -> None:
        self.redaction = redaction

    def search(self, session: Session, turn: ConversationTurn, chat: ChatTokenizer) -> Counter[str]:
        """Returns the number of matches of each rule in a call.

        Args:
            session: with the call that this one continues, if it continues one.
            turn: the call, of the session or beside it.
            chat: tokenizer of the model.
        """
        before = self._end_of(session, turn.interaction.prefix, chat)
        text = before + prompt_text(turn, chat) + completion_text(turn, chat)
        found = self.redaction.count(text, after=len(before))
        return found + self.redaction.count(turn.interaction.call_problem)

    def apply(self, session: Session, turn: ConversationTurn, chat: ChatTokenizer) -> Session:
        """Returns the session with the matches in its newest call."""
        if not (matches := self.search(session, turn, chat)):
            return session
        return msgspec.structs.replace(session, matches=dict(Counter(session.matches) + matches))

    def _end_of(self, session: Session, call: str, chat: ChatTokenizer) -> str:
        earlier = next((turn for turn in session.turns if turn.interaction.id == call), None) if call else None
        if earlier is None:
            return ""
        answer = completion_text(earlier, chat)
        text = answer if len(answer) >= OVERLAP else prompt_text(earlier, chat) + answer
        return text[-OVERLAP:]
