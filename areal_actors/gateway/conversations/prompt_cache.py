"""Prompts of calls that continue no other: the episodes of a group begin with the same messages."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from areal_actors.gateway.conversations.turns import Prompt

CACHED_BYTES = 4 << 20
"""Size of the cache; a prompt beyond an eighth of it is not kept."""
ENTRY_BYTES = 1024
"""Estimate of an entry without its columns."""
CLOCK = "strftime_now"
"""Function with which chat templates write the date: their prompts are not the same later."""


class PromptCache:
    """The prompts used last, by digest of messages, tools and settings."""

    def __init__(self, template: str) -> None:
        """`template`: source of the chat template."""
        self._is_pure = CLOCK not in template
        self._lock = Lock()
        """Long requests are handled beside the event loop."""
        self._kept: OrderedDict[bytes, Prompt] = OrderedDict()
        self._bytes = 0

    def get(self, digest: bytes) -> Prompt | None:
        """Returns the prompt of this digest, if it is kept."""
        with self._lock:
            if (prompt := self._kept.get(digest)) is not None:
                self._kept.move_to_end(digest)
            return prompt

    def put(self, digest: bytes, prompt: Prompt) -> None:
        """Keep a prompt without prefix and images."""
        size = _size(prompt)
        if not self._is_pure or size > CACHED_BYTES // 8:
            return
        with self._lock:
            if digest not in self._kept:
                self._kept[digest] = prompt
                self._bytes += size
            while self._bytes > CACHED_BYTES:
                self._bytes -= _size(self._kept.popitem(last=False)[1])


def _size(prompt: Prompt) -> int:
    return len(prompt.token_ids) + len(prompt.messages) + len(prompt.suffix_text) + len(prompt.tools) + ENTRY_BYTES
