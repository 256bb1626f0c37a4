"""Access to the page.

A token off loopback, names that a browser may use for a page on loopback, and headers of every response.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web

from areal_actors.core.local_hosts import foreign_name, is_loopback

COOKIE = "areal_page"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""No script, style, font or request of another host or inside the page's text; and no page of another host may show or
read this one. Nothing is kept by the browser: neither texts of a run, nor a lock of its cache that a page would wait
for."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Access:
    """Decides who may read the page."""

    def __init__(self, host: str) -> None:
        self.token = "" if is_loopback(host) else secrets.token_urlsafe(24)
        """Empty on loopback."""

    def refuse(self, request: web.Request) -> web.Response | None:
        """Returns the refusal of a request; None if it may be answered."""
        if not self.token:
            if not (name := foreign_name(request.host)):
                return None
            return web.Response(
                status=403, text=f"This page is served to this machine only, as 127.0.0.1; found the name {name}.\n"
            )
        if any(
            self._equal(given)
            for given in (request.query.get("token", ""), request.cookies.get(COOKIE, ""), _bearer(request))
        ):
            return None
        return web.Response(
            status=401,
            text="This page needs the token that `areal-actors` has printed with its address: open that address.\n",
        )

    def _equal(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self.token.encode())

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse, or answer with the headers of every response; a token in the address becomes a cookie."""
        refusal = self.refuse(request)
        if refusal is None and self.token and request.query.get("token") and request.method == "GET":
            refusal = web.Response(status=303, headers={"Location": request.path})
            refusal.set_cookie(COOKIE, self.token, httponly=True, samesite="Strict")
        if refusal is not None:
            refusal.headers.update(HEADERS)
            return refusal
        return await handler(request)


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers to a response before it is sent."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def _bearer(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")
