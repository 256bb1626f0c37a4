"""Digests of the prompts of conversations, computed from what each call adds to the one before.

One names the tokens at inference workers; the other, of sampling parameters and tokens, is the call's in `calls.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from areal_actors.core.token_digest import TokenDigest
from areal_actors.gateway.conversations.turns import Prompt

MAX_ENDS = 4096
"""Calls whose digests are kept for those that continue them; others read all tokens again, 1 ms for 100,000."""
LEAST_BYTES = 4096
"""Size of the tokens from which digests are kept: to read fewer again takes 10 µs."""


class PromptDigest(NamedTuple):
    """Digests of a prompt, or of a prompt with its answer."""

    tokens: TokenDigest
    sampling: bytes
    """Sampling parameters, as in `call`."""
    call: TokenDigest
    """Digest of the sampling parameters and the tokens."""
    prefix: bytes = b""
    """Digest of the tokens of the call that it continues; empty if it continues none."""

    def extended(self, ids: bytes) -> PromptDigest:
        """Returns the digests with more tokens (u32) at the end."""
        return PromptDigest(self.tokens.extended(ids), self.sampling, self.call.extended(ids), self.tokens.value())


class PromptDigests:
    """Digests of the completed calls of sessions, those of the last ones."""

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[str, str], PromptDigest] = OrderedDict()

    def of_prompt(self, session: str, prompt: Prompt, sampling: bytes) -> PromptDigest:
        """Returns the digests of a prompt of a session, for these sampling parameters."""
        if not prompt.prefix:
            ids = prompt.suffix_ids
            return PromptDigest(TokenDigest(ids), sampling, TokenDigest(sampling + ids))
        before = self._ends.get((session, prompt.prefix))
        if before is not None and before.sampling == sampling:
            return before.extended(prompt.suffix_ids)
        ids = prompt.token_ids
        prefix = TokenDigest(ids[: 4 * prompt.cached_tokens]) if before is None else before.tokens
        call = TokenDigest(sampling).extended(ids)
        return PromptDigest(prefix.extended(prompt.suffix_ids), sampling, call, prefix.value())

    def record(self, session: str, interaction: str, prompt: Prompt, end: PromptDigest) -> None:
        """Keep the digests of a call with its answer, in place of those of the call that it continues."""
        if is_digest_kept(prompt):
            self._ends.pop((session, prompt.prefix), None)
            self._ends[session, interaction] = end
            if len(self._ends) > MAX_ENDS:
                self._ends.popitem(last=False)


def is_digest_kept(prompt: Prompt) -> bool:
    """True if the digests of a call with this prompt are kept for those that continue it."""
    return 4 * prompt.token_count >= LEAST_BYTES
