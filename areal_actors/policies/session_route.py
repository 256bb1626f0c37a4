"""The endpoint of a policy's gateway at which another run opens the session of an attempt at an episode."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
from aiohttp import web

from areal_actors.core.errors import RequestError, SessionError
from areal_actors.gateway.server import Gateway, key_of, read_body
from areal_actors.gateway.sessions.keys import is_admin
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.messages import OpenPolicySession
from areal_actors.policies.call_router import OPEN_PATH


class PolicySessionRoute:
    """Serves `OPEN_PATH` to who has the admin key; body and answer are msgpack."""

    def __init__(self, admin_key: str) -> None:
        self.admin_key = admin_key

    def add_routes(self, registry: SessionRegistry, app: web.Application, gateway: Gateway) -> None:  # noqa: ARG002
        """Serve the endpoint."""

        async def open_session(request: web.Request) -> web.Response:
            if not is_admin(key_of(request), self.admin_key):
                raise SessionError(f"{request.path} requires the admin key")
            try:
                question = msgspec.msgpack.decode(await read_body(request), type=OpenPolicySession)
            except msgspec.DecodeError as error:
                raise RequestError(f"the body is no OpenPolicySession in msgpack: {error}") from error
            async with aclosing(gateway.submit(question)) as answers:
                return web.Response(body=msgspec.msgpack.encode(await anext(answers)))

        app.router.add_post(OPEN_PATH, open_session)
