"""Ids that follow from who says something, and why: said again, a message is recognised and kept once."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from bus.message import Event, Message, Work


def message_id(*parts: object) -> str:
    """An id that follows from its parts: the same actor saying the same thing for the same cause says it once."""
    return blake2b("|".join(map(str, parts)).encode(), digest_size=10).hexdigest()


class HandlingIds:
    """The ids of what an actor says while it handles one message.

    What lasts, events and work, is counted apart: whoever handles the message again after a failure may tell more or less on the
    way there.
    """

    def __init__(self, instance: str, cause: str) -> None:
        self._instance, self._cause = instance, cause
        self._said: Counter[bool] = Counter()

    def following(self, said: Message) -> str:
        """The id of what is said next."""
        lasts = isinstance(said, Event | Work)
        self._said[lasts] += 1
        return message_id(self._instance, self._cause, *(() if lasts else ("passing",)), self._said[lasts])
