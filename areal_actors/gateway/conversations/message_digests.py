"""Digests of the messages of a request, which find the earlier call that it continues."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import xxhash

from areal_actors.gateway.conversations.message_equality import MessageDict, digest, encode, value_digests
from areal_actors.gateway.conversations.turns import ConversationTurn

LONG_HISTORY_BYTES = 32 << 10
"""Size of a request from which its messages are kept for the next one, which has the same objects for them."""


class MessageDigests:
    """Digests of the beginnings of a message list, each computed once, and each message encoded once."""

    def __init__(self, messages: Sequence[MessageDict], before: MessageDigests | None = None) -> None:
        """The messages that are those of `before`, as objects, are not encoded again."""
        self.messages = messages
        self._exact: dict[int, bytes] = {}
        self._values: list[bytes] = []
        self._encoded = 0
        """Number of messages in `_text`."""
        self._text = xxhash.xxh3_128(b"[")
        """Hash of the JSON of the first messages, an array that is not closed."""
        if before is not None and before.begins(messages):
            self._encoded, self._text = before.state()
            if self._encoded:
                self._exact[self._encoded] = before.exact(self._encoded)

    def begins(self, messages: Sequence[MessageDict]) -> bool:
        """True if the messages begin with all of these, as objects."""
        return 0 < len(self.messages) <= len(messages) and all(map(is_, self.messages, messages))

    def state(self) -> tuple[int, xxhash.xxh3_128]:
        """Returns the number of messages that were encoded, and a copy of the hash of their JSON."""
        return self._encoded, self._text.copy()

    def exact(self, count: int) -> bytes:
        """Returns the digest of the first messages as sent."""
        if count not in self._exact:
            if count < self._encoded:
                self._exact[count] = digest(self.messages[:count])
            else:
                self._read_to(count)
                text = self._text.copy()
                text.update(b"]")
                self._exact[count] = text.digest()
        return self._exact[count]

    def _read_to(self, count: int) -> None:
        more = encode(self.messages[self._encoded : count])[1:-1]
        self._text.update(b"," + more if self._encoded and more else more)
        self._encoded = count

    def is_request_of(self, turn: ConversationTurn) -> bool:
        """True if the messages begin with the request's of this call, as sent or by value."""
        count = turn.prompt.message_count
        if self.exact(count) == turn.prompt.request_digest:
            return True
        self._values = self._values or value_digests(b"", self.messages)
        return self._values[count - 1] == turn.prompt.value_digest
