"""Prompts of calls that continue no other: the episodes of a group begin with the same messages."""

from __future__ import annotations

from threading import Lock

from cachetools import LRUCache

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
        self._kept: LRUCache[bytes, Prompt] = LRUCache(CACHED_BYTES, getsizeof=_size)

    def get(self, digest: bytes) -> Prompt | None:
        """Returns the prompt of this digest, if it is kept."""
        with self._lock:
            return self._kept.get(digest)

    def put(self, digest: bytes, prompt: Prompt) -> None:
        """Keep a prompt without prefix and images."""
        if self._is_pure and _size(prompt) < CACHED_BYTES // 8:
            with self._lock:
                self._kept[digest] = prompt


def _size(prompt: Prompt) -> int:
    return len(prompt.token_ids) + len(prompt.messages) + len(prompt.suffix_text) + len(prompt.tools) + ENTRY_BYTES
