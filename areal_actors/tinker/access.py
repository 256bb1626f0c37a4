"""Access to the server.

Programs of this machine have it, or those with the key that was printed; never a page that a browser has open. A
browser sends requests of any page to the loopback interface: it names the page in `Origin`, and its own host in `Host`
where a page has had its name resolved to this machine. Without asking the server first it sends only forms and plain
text.
"""

from __future__ import annotations

import hmac
import secrets

from aiohttp import web

from areal_actors.core.command import COMMAND
from areal_actors.core.local_hosts import foreign_name, is_loopback

KEY_PREFIX = "tml-"
"""The client library refuses other keys."""
ANY_KEY = "tml-local"
BODY_TYPES = ("application/json", "application/x-protobuf")


class TinkerAccess:
    """Decides which requests are answered."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """`host`: the address that the server listens on; off the loopback interface a key is made."""
        self.key = "" if is_loopback(host) else KEY_PREFIX + secrets.token_urlsafe(24)
        """Empty on the loopback interface."""

    def refuse(self, request: web.Request) -> tuple[int, str] | None:
        """Return status and reason of a refusal; None if the request may be answered."""
        if (origin := request.headers.get("Origin")) is not None:
            return 403, f"requests of web pages are refused; found one of {origin}"
        if not self.key and (name := foreign_name(request.host)):
            return 403, f"this server is for programs of this machine, as http://127.0.0.1; found the host {name}"
        if self.key and not hmac.compare_digest(_key_of(request).encode(errors="surrogateescape"), self.key.encode()):
            return 401, f"the key is not the one that `{COMMAND} serve tinker` has printed: set TINKER_API_KEY to it"
        if request.body_exists and request.content_type not in BODY_TYPES:
            return 415, f"the content type of a body is {' or '.join(BODY_TYPES)}; found {request.content_type}"
        return None


def _key_of(request: web.Request) -> str:
    return request.headers.get("X-API-Key") or request.headers.get("Authorization", "").removeprefix("Bearer ")
