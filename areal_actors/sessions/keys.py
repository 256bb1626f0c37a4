"""API keys: what they are made of, and which are too well known to guard anything."""

from __future__ import annotations

import hmac
from ipaddress import ip_address

SHORTEST = 16
WELL_KNOWN = frozenset(
    {"admin", "areal-admin-key", "areal-admin", "sk-admin", "admin-key", "changeme", "password", "secret", "empty", "test"}
)
"""What examples and documentations use; compared in lower case."""


def session_key(secret: bytes, session: str) -> str:
    """A session's key: 32 bytes that nobody guesses without the run's secret, and that a restarted gateway makes again."""
    return "sk-" + hmac.new(secret, session.encode(errors="surrogateescape"), "sha256").hexdigest()


def admin_key(secret: bytes, given: str = "") -> str:
    """The key of the endpoints that start and export sessions: the one given, or the run's own."""
    return given or "sk-admin-" + hmac.new(secret, b"admin", "sha256").hexdigest()


def is_admin(key: str, admin: str) -> bool:
    """Whether this is the admin key; how long it takes to say so tells nothing about it."""
    return hmac.compare_digest(key.encode(errors="surrogateescape"), admin.encode(errors="surrogateescape"))


def weakness(given: str, host: str) -> str:
    """Why an admin key must not be used at this address; empty if it may."""
    if not given or is_loopback(host):
        return ""
    if given.lower() in WELL_KNOWN:
        return f"a key that everybody knows, on {host}, which others can reach"
    return f"a key of {len(given)} characters, on {host}, which others can reach" if len(given) < SHORTEST else ""


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
