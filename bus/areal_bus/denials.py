"""Permission denials of a connection.

The server reports each once, as an asynchronous error that the NATS client ignores.
"""

from __future__ import annotations

import re
from typing import Final

from areal_bus.errors import PermissionDenied

_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)
_REMEMBERED: Final = 1024


class Denials:
    """Subjects that the server has denied this user, until the next connection."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._published: dict[str, PermissionDenied] = {}
        self._subscribed: PermissionDenied | None = None

    def note(self, error: str) -> PermissionDenied | None:
        """Record and return the denial that a connection error reports; None for any other error."""
        if (match := _DENIED.search(error)) is None:
            return None
        verb, subject = match[1].lower(), match[2].lower()
        what = "publish" if verb == "publish" else "subscribe"
        denied = PermissionDenied(
            f"the NATS server does not let user {self._user!r} {what} to {subject}; declare the message in the"
            " handler's signature, or, on a server of your own, grant this user the permission",
            subject,
        )
        if verb == "publish":
            if len(self._published) < _REMEMBERED:
                self._published[subject] = denied
        else:
            self._subscribed = denied
        return denied

    def check(self, subject: str) -> None:
        """Raise if publishing to this subject was denied."""
        if self._published and (denied := self._published.get(subject.lower())) is not None:
            raise denied

    def check_subscriptions(self) -> None:
        """Raise if a subscription was denied, once."""
        denied, self._subscribed = self._subscribed, None
        if denied is not None:
            raise denied

    def forget(self) -> None:
        """Clear all denials: after a reconnection the user may have other permissions."""
        self._published.clear()
        self._subscribed = None
