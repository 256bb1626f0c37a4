"""API keys: derivation from the run's secret, comparison, and weak keys."""

from __future__ import annotations

import hmac

from areal_actors.core.local_hosts import is_loopback

SHORTEST = 16
WELL_KNOWN = frozenset(
    {
        "admin",
        "areal-admin-key",
        "areal-admin",
        "sk-admin",
        "admin-key",
        "changeme",
        "password",
        "secret",
        "empty",
        "test",
    }
)
"""Keys from examples and documentation; compared in lower case."""


def session_key(secret: bytes, session: str) -> str:
    """A session's key: an HMAC of 32 bytes with the run's secret, which a restarted gateway derives again."""
    return "sk-" + hmac.new(secret, session.encode(errors="surrogateescape"), "sha256").hexdigest()


def admin_key(secret: bytes, given: str = "") -> str:
    """The key of the endpoints that start and export sessions: `given`, or one derived from the run's secret."""
    return given or "sk-admin-" + hmac.new(secret, b"admin", "sha256").hexdigest()


def feedback_key(secret: bytes) -> str:
    """The key with which feedback on every session is sent, and nothing else can be done."""
    return "sk-feedback-" + hmac.new(secret, b"feedback", "sha256").hexdigest()


def is_admin(key: str, admin: str) -> bool:
    """True if this is the admin key; compared in constant time."""
    return hmac.compare_digest(key.encode(errors="surrogateescape"), admin.encode(errors="surrogateescape"))


def weakness(given: str, host: str) -> str:
    """The reason why an admin key is too weak for this address; empty if it is not."""
    if not given or is_loopback(host):
        return ""
    if given.lower() in WELL_KNOWN:
        return f"a well-known key, on {host}, which other machines can reach"
    return (
        f"a key of {len(given)} characters, on {host}, which other machines can reach" if len(given) < SHORTEST else ""
    )
