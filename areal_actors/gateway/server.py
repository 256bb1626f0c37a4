"""The gateway: the aiohttp server that agents call. It translates requests; the session manager answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aiohttp import hdrs, web

import areal_actors
from areal_actors.core.errors import RequestError, SetupError
from areal_actors.core.http_connections import HttpConnection, HttpListener, answer_in_place, most_connections
from areal_actors.core.plain_connections import PlainConnection
from areal_actors.gateway.event_stream import EVENTS, EventStream
from areal_actors.gateway.http_answers import (
    BODY_SECONDS,
    Handler,
    add_request_id,
    as_json,
    errors_in_dialect_format,
    readable,
    with_request_id,
)
from areal_actors.gateway.listening import encryption
from areal_actors.gateway.long_work import LongWork
from areal_actors.gateway.model_endpoint import ModelEndpoint
from areal_actors.gateway.parsed_histories import ParsedHistories
from areal_actors.gateway.plain_calls import PlainCalls, key_in
from areal_actors.gateway.protocols import DIALECTS
from areal_actors.gateway.protocols.openapi import GATEWAY_ENDPOINTS, openapi
from areal_actors.gateway.protocols.session_requests import ENDPOINTS
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.runtime.actor import Submit

MODEL = "default"
SHUTDOWN_SECONDS = 5.0
"""Grace period of in-flight calls when the gateway stops."""
JSON_TYPES = (
    "application/json",
    "text/json",
    "text/plain",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
)
"""The last three are defaults of HTTP clients such as curl."""
PREFIXES = ("", "/v1", "/v1/v1", "/{session}/v1", "/{session}/v1/v1", "/{session}")
"""Before the paths of the model; the router tries those with a session in this order. Anthropic's clients append `/v1`
to an address that may end with it already."""


class Gateway:
    """Every call carries a session's API key, as `Authorization: Bearer` or `x-api-key`.

    The session may be in the path, or not. The path may have the key in place of the session's name. A disconnect
    cancels the call: a client that times out and retries leaves one interaction, not two.
    """

    def __init__(
        self,
        config: GatewaySettings,
        submit: Submit,
        session_of_key: Callable[[str, str], str],
        add_routes: Sequence[Callable[[web.Application, Gateway], None]],
        long_work: LongWork,
    ) -> None:
        """Each of `add_routes` adds routes beside those of the model; `long_work` parses long requests."""
        self.config = config
        self.add_routes = add_routes
        self.submit = submit
        self.session_of_key = session_of_key
        self.root = ""
        self.endpoints = [*GATEWAY_ENDPOINTS, *ENDPOINTS]
        """Endpoints of the OpenAPI description; what adds routes adds theirs."""
        self.long_work = long_work
        self.histories = ParsedHistories()
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            SetupError: the port is taken, or the certificate cannot be used.
        """
        secure = encryption(self.config)
        own = [suspend_head_timer, with_request_id, errors_in_dialect_format]
        app = web.Application(client_max_size=self.config.max_body_mb * 2**20, middlewares=own)
        endpoints = {
            dialect.path: ModelEndpoint(dialect, self.config, self.submit, self.long_work, self.histories)
            for dialect in DIALECTS
        }
        for prefix in PREFIXES:
            for path, endpoint in endpoints.items():
                app.router.add_post(f"{prefix}/{path}", self._handler_of(endpoint))
            app.router.add_get(f"{prefix}/models", self.models)
            app.router.add_get(f"{prefix}/models/{{model}}", self.model)
        app.router.add_get("/health", self.health)
        app.router.add_get("/", self.health)
        app.router.add_get("/openapi.json", self.description)
        for add_routes in self.add_routes:
            add_routes(app, self)
        self._runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=True)
        await self._runner.setup()
        assert self._runner.server is not None
        # What looks at all requests sees them as aiohttp's.
        calls = PlainCalls(endpoints, JSON_TYPES, self.session_of_key) if len(app.middlewares) == len(own) else None
        make = partial(PlainConnection, calls) if calls is not None else HttpConnection
        self._listener = HttpListener(self._runner.server, self.config.head_seconds, most_connections(), make)
        try:
            await self._listener.start(self.config.host, self.config.port, secure)
        except OSError as error:
            await self._runner.cleanup()
            raise SetupError(
                f"gateway.port: cannot listen on {self.config.host}:{self.config.port} ({error.strerror}); "
                "set another port, or 0 to take a free one"
            ) from error
        self.root = self.config.url(self._listener.port)

    async def stop(self) -> None:
        """Stop listening; in-flight calls get some seconds to end. Idempotent."""
        if (runner := self._runner) is not None:
            self._runner = None
            if self._listener is not None:
                self._listener.close()
            await runner.cleanup()

    async def health(self, _: web.Request) -> web.Response:
        """Liveness of the gateway."""
        return as_json({"status": "ok"})

    async def description(self, _: web.Request) -> web.Response:
        """The OpenAPI description."""
        return as_json(openapi(areal_actors.__version__, self.endpoints, self.config.unknown_fields))

    async def models(self, request: web.Request) -> web.Response:
        """The one model behind this gateway."""
        self.session_of(request)
        return as_json(
            {"object": "list", "data": [_model(MODEL)], "has_more": False, "first_id": MODEL, "last_id": MODEL}
        )

    async def model(self, request: web.Request) -> web.Response:
        """The model under any name."""
        self.session_of(request)
        return as_json(_model(request.match_info["model"]))

    def _handler_of(self, endpoint: ModelEndpoint) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            session = self.session_of(request)
            body = await body_of(request)
            sent = await endpoint.answer(session, request.headers, body, partial(_open_stream, request))
            return sent if isinstance(sent, EventStream) else as_json(sent.body, sent.status, sent.headers)

        return answer

    def session_of(self, request: web.Request) -> str:
        """The session of a request's key, which is in its headers or its path.

        Raises:
            SessionError: there is no key, it has no session, or its session is not the one in the path.
        """
        return self.session_of_key(key_of(request), request.match_info.get("session", ""))


def _open_stream(request: web.Request, headers: dict[str, str]) -> EventStream:
    stream = EventStream(request, {**EVENTS, **headers})
    add_request_id(request, stream)
    return stream


def key_of(request: web.Request) -> str:
    """The API key of a request; empty if it has none."""
    return key_in(request.headers)


async def body_of(request: web.Request) -> bytes:
    """The body of a request that may hold JSON.

    Raises:
        RequestError: its content type is something else.
    """
    if (
        hdrs.CONTENT_TYPE in request.headers
        and request.content_type not in JSON_TYPES
        and not request.content_type.endswith("+json")
    ):
        raise RequestError(f"the content type is {readable(request.content_type):.80}; send application/json")
    return await read_body(request)


async def read_body(request: web.Request) -> bytes:
    """The body of a request of any type.

    Raises:
        HTTPUnsupportedMediaType: it is compressed.
        HTTPRequestTimeout: it does not arrive in time.
    """
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() not in {"", "identity"}:
        raise web.HTTPUnsupportedMediaType
    if request.content.is_eof():
        return await request.read()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(headers={hdrs.CONNECTION: "close"}) from None


@web.middleware
async def suspend_head_timer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Suspend the head timer of the connection while a request is handled."""
    return await answer_in_place(request, handler)


def _model(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": 0,
        "owned_by": "areal-actors",
        "display_name": name,
    }
