"""Prompts that inference workers hold, as far as this gateway knows: a call sends only what a worker does not hold.

Nothing depends on this being true. A worker that lacks a prefix asks for the whole prompt.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from areal_actors.messages.generation import PrefixProblem

MAX_HELD = 16_384
"""Most prompts and answered prompts that are remembered; a call whose prefix is forgotten sends all of its tokens."""
LEAST_TOKENS = 256
"""Length from which prompts are held: a shorter one is sent in less time than it is looked up."""


class SentPrompt(NamedTuple):
    """Tokens of a prompt as they are sent: those of a prefix by its digest, and the others."""

    prompt_ids: bytes
    """u32."""
    prefix: bytes = b""
    prefix_tokens: int = 0
    digest: bytes = b""
    """Digest of the whole prompt; empty if it is not to be held."""


class HeldPrefixes:
    """Digests of tokens, each with the worker that was sent them last."""

    def __init__(self) -> None:
        self._holders: dict[str, object] = {}
        """By worker, what stands for it until it is gone."""
        self._holder: dict[bytes, object] = {}
        self._holder_before: dict[bytes, object] = {}
        """Those noted before, forgotten after as many again; an ordered dictionary would take twice the memory."""
        self.problems: Counter[PrefixProblem] = Counter()
        """Number of calls that had to be sent again, whole."""

    def is_held(self, digest: bytes, worker: str) -> bool:
        """True if this worker was the last that was sent these tokens."""
        holder = self._holders.get(worker)
        return holder is not None and (self._holder.get(digest) or self._holder_before.get(digest)) is holder

    def note(self, digest: bytes, worker: str) -> None:
        """Note that a worker holds these tokens."""
        if len(self._holder) >= MAX_HELD // 2:
            self._holder_before, self._holder = self._holder, {}
        self._holder[digest] = self._holders.setdefault(worker, object())

    def drop(self, prompt: SentPrompt, problem: PrefixProblem) -> None:
        """Forget the tokens that a worker does not hold."""
        self.problems[problem] += 1
        for digest in (prompt.prefix, prompt.digest):
            self._holder.pop(digest, None)
            self._holder_before.pop(digest, None)

    def drop_worker(self, worker: str) -> None:
        """Forget what a worker holds, since it is gone."""
        self._holders.pop(worker, None)
