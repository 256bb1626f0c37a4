"""Digests of token ids to which more ids are added: each token of a conversation is read once."""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 16


class TokenDigest:
    """Digest of bytes, such as token ids as u32."""

    __slots__ = ("_state",)

    def __init__(self, content: bytes = b"", *, after: TokenDigest | None = None) -> None:
        """Digest of the content, or of all before with the content at its end."""
        if after is None:
            self._state = blake2b(content, digest_size=DIGEST_BYTES)
        else:
            self._state = after.copy_state()
            self._state.update(content)

    def copy_state(self) -> blake2b:
        """Returns a hash of what was read so far."""
        return self._state.copy()

    def extended(self, more: bytes) -> TokenDigest:
        """Returns the digest of this content with more at its end."""
        return TokenDigest(more, after=self)

    def value(self) -> bytes:
        """Returns the digest."""
        return self._state.digest()
