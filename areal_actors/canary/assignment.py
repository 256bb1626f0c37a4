"""Sessions by share: the same session of the same seed and candidate is always on the same side."""

from __future__ import annotations

from hashlib import blake2b

UNITS = 1 << 64


def draw_share(seed: int, weight_version: int, session: str) -> float:
    """Returns a number from 0 up to 1, uniform over sessions and independent of their order.

    Args:
        seed: that of the run.
        weight_version: version of the candidate: each has other draws.
        session: name of the session.
    """
    digest = blake2b(f"{seed} {weight_version} {session}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / UNITS


def is_in_share(seed: int, weight_version: int, session: str, share: float) -> bool:
    """Returns True if a session is among the share that the candidate answers."""
    return draw_share(seed, weight_version, session) < share
