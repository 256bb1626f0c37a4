"""What the server has denied a connection: it says so once, beside the messages, and the client goes on as if nothing had been."""

from __future__ import annotations

import re
from typing import Final

from bus.errors import PermissionDenied

_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)
_REMEMBERED: Final = 1024


class Denials:
    """The subjects that the server has refused this user, until the next connection."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._published: dict[str, PermissionDenied] = {}
        self._subscribed: PermissionDenied | None = None

    def note(self, error: str) -> PermissionDenied | None:
        """The denial that an error of the connection reports; None if it is about something else."""
        if (found := _DENIED.search(error)) is None:
            return None
        verb, subject = found[1].lower(), found[2].lower()
        what = "publish" if verb == "publish" else "subscribe"
        denied = PermissionDenied(
            f"the NATS server does not let user {self._user!r} {what} to {subject}; "
            "a handler that says it must declare it in its signature, and another server's user needs this permission there",
            subject,
        )
        if verb == "publish":
            if len(self._published) < _REMEMBERED:
                self._published[subject] = denied
        else:
            self._subscribed = denied
        return denied

    def check(self, subject: str) -> None:
        """Raise the denial of publishing to this subject, if there was one."""
        if self._published and (denied := self._published.get(subject.lower())) is not None:
            raise denied

    def check_subscriptions(self) -> None:
        """Raise the denial of a subscription, once."""
        denied, self._subscribed = self._subscribed, None
        if denied is not None:
            raise denied

    def forget(self) -> None:
        """The connection is new; its user may have other permissions."""
        self._published.clear()
        self._subscribed = None
