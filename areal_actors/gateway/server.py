"""The gateway: the aiohttp server that agents call. It translates requests; the session manager answers them."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from itertools import accumulate
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
import structlog
from aiohttp import hdrs, web

import areal_actors
from areal_actors.core.errors import RequestError, SessionElsewhere, SessionError, SetupError
from areal_actors.core.settings import GatewaySettings
from areal_actors.gateway.listening import HttpConnection, encryption
from areal_actors.gateway.protocols import DIALECTS, dialect_of_path
from areal_actors.gateway.protocols.base import Dialect
from areal_actors.gateway.protocols.openapi import GATEWAY_ENDPOINTS, openapi
from areal_actors.gateway.protocols.session_requests import ENDPOINTS
from areal_actors.messages import ModelRequest, ModelResponsePart, Refusal
from areal_actors.runtime.actor import Submit
from bus.errors import NoResponder

MODEL = "default"
BODY_SECONDS = 30.0
"""Time limit for a request's body; slower or broken bodies would hold a connection for nothing."""
SHUTDOWN_SECONDS = 5.0
"""Grace period of in-flight calls when the gateway stops."""
MISDIRECTED = 421
"""HTTP status of requests for a session of another gateway."""
STOPPING = "the gateway is stopping; retry when it is back"
JSON_TYPES = ("application/json", "text/json", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded")
"""The last three are defaults of HTTP clients such as curl."""
REQUEST_IDS = ("Idempotency-Key", "X-Client-Request-Id")
"""Headers with a client's request id, for the deduplication of retries."""
CLIENT_SESSION = "X-Session-ID"
"""Header with the name of a conversation at the client, which separates the agents of one episode."""
LONGEST_NAME = 256
PREFIXES = ("", "/v1", "/{session}/v1", "/{session}")
"""Before the paths of the model; the router tries those with a session in this order."""
IGNORED = "x-areal-ignored"
"""Response header that lists what the request had and is accepted without effect."""
MAX_IGNORED = 1000
"""Maximum length of its value, without the `...` at its end: clients limit the size of headers."""

BACKLOG = 1024
"""Connections in the accept queue: a thousand agents may connect at once."""

LONG_BYTES: Final = 128 << 10
"""Size from which a request is long: tokenizing it takes a sixth of a second, which would block all other calls."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
P = ParamSpec("P")
R = TypeVar("R")

REQUEST_ID = web.RequestKey("request_id", str)

_ENCODER = msgspec.json.Encoder()
logger = structlog.get_logger(__name__)


class RequestRefused(Exception):
    """Raised to answer a request with this refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class LongWork(ThreadPoolExecutor):
    """A small thread pool for long requests: tokenizers release the GIL, and Python code alternates with the event loop."""

    async def run(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function: inline for a short request, in a thread for a long one."""
        if size < LONG_BYTES:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self, partial(function, *args, **kwargs))


class Gateway:
    """Every call carries a session's API key, as `Authorization: Bearer` or `x-api-key`, with or without the session in the path.

    The path may have the key in place of the session's name.
    A disconnect cancels the call: a client that times out and retries leaves one interaction, not two.
    """

    def __init__(
        self,
        config: GatewaySettings,
        submit: Submit,
        session_of_key: Callable[[str, str], str],
        add_routes: Callable[[web.Application, Gateway], None],
        long_work: LongWork,
    ) -> None:
        """`add_routes` adds the routes beside those of the model; `long_work` parses long requests."""
        self.config = config
        self.add_routes = add_routes
        self.submit = submit
        self.session_of_key = session_of_key
        self.root = ""
        self.long_work = long_work
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            SetupError: the port is taken, or the certificate cannot be used.
        """
        secure = encryption(self.config)
        app = web.Application(
            client_max_size=self.config.max_body_mb * 2**20, middlewares=[suspend_head_timer, with_request_id, errors_in_dialect_format]
        )
        for prefix in PREFIXES:
            for dialect in DIALECTS:
                app.router.add_post(f"{prefix}/{dialect.path}", self._handler_of(dialect))
            app.router.add_get(f"{prefix}/models", self.models)
            app.router.add_get(f"{prefix}/models/{{model}}", self.model)
        app.router.add_get("/health", self.health)
        app.router.add_get("/", self.health)
        app.router.add_get("/openapi.json", self.description)
        self.add_routes(app, self)
        self._runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=True)
        await self._runner.setup()
        assert self._runner.server is not None
        connection = partial(HttpConnection, self._runner.server, self.config.head_seconds)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(connection, self.config.host, self.config.port, backlog=BACKLOG, ssl=secure)
        except OSError as error:
            await self._runner.cleanup()
            raise SetupError(
                f"gateway.port: cannot listen on {self.config.host}:{self.config.port} ({error.strerror}); "
                "set another port, or 0 to take a free one"
            ) from error
        self.root = self.config.url(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening; in-flight calls get some seconds to end. Idempotent."""
        if (runner := self._runner) is not None:
            self._runner = None
            if self._server is not None:
                self._server.close()
            await runner.cleanup()

    async def health(self, _: web.Request) -> web.Response:
        """Liveness of the gateway."""
        return as_json({"status": "ok"})

    async def description(self, _: web.Request) -> web.Response:
        """The OpenAPI description."""
        return as_json(openapi(areal_actors.__version__, [*GATEWAY_ENDPOINTS, *ENDPOINTS]))

    async def models(self, request: web.Request) -> web.Response:
        """The one model behind this gateway."""
        self.session_of(request)
        return as_json({"object": "list", "data": [_model(MODEL)], "has_more": False, "first_id": MODEL, "last_id": MODEL})

    async def model(self, request: web.Request) -> web.Response:
        """The model under any name."""
        self.session_of(request)
        return as_json(_model(request.match_info["model"]))

    def _handler_of(self, dialect: Dialect[Any]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            session = self.session_of(request)
            body = await body_of(request)
            asked, question, ignored = await self.long_work.run(len(body), _parse_request, dialect, body, session)
            ignored = _shortened([*ignored, *[name for name in dialect.ignored_headers if name in request.headers]])
            request_id = next((name for header in REQUEST_IDS if (name := request.headers.get(header))), "")
            client_session = request.headers.get(CLIENT_SESSION, "")
            question = msgspec.structs.replace(
                question,
                request_id=readable(request_id),
                ignored=ignored,
                client_session=readable(client_session)[:LONGEST_NAME],
            )
            created = int(time.time())
            async with aclosing(self.submit(question)) as parts:
                first = await anext(parts)
                without_effect = first.ignored or ignored
                headers = {IGNORED: ", ".join(without_effect)} if without_effect else {}
                if question.stream and not first.error:
                    return await _stream(request, dialect, asked, first, parts, created, headers)
                answers = [first, *[part async for part in parts]] if not first.is_last() else [first]
            if failed := next((part for part in answers if part.error), None):
                error = dialect.error(failed.error, failed.error_status, failed.error_field, failed.error_code)
                return as_json(error, failed.error_status, headers)
            answers.sort(key=lambda part: part.choice)
            return as_json(dialect.answer(asked, created).whole(answers), headers=headers)

        return answer

    def session_of(self, request: web.Request) -> str:
        """The session of a request's key, which is in its headers or its path.

        Raises:
            SessionError: there is no key, it has no session, or its session is not the one in the path.
        """
        return self.session_of_key(key_of(request), request.match_info.get("session", ""))


def _parse_request(dialect: Dialect[Any], body: bytes, session: str) -> tuple[Any, ModelRequest, Sequence[str]]:
    """A body as parsed by its dialect, as a `ModelRequest`, and what it has that is ignored."""
    asked = dialect.decode(body)
    return asked, msgspec.structs.replace(dialect.call(asked, session), body_bytes=len(body)), dialect.ignored(asked)


def _shortened(ignored: Sequence[str]) -> tuple[str, ...]:
    """The ignored names, in at most `MAX_IGNORED` characters; `...` stands for the rest."""
    if not ignored:
        return ()
    ends = accumulate(len(one) + 2 for one in ignored)
    kept = [one for one, end in zip(ignored, ends, strict=True) if end <= MAX_IGNORED]
    return (*kept, "...") if len(kept) < len(ignored) else tuple(kept)


def key_of(request: web.Request) -> str:
    """The API key of a request; empty if it has none."""
    bearer = request.headers.get(hdrs.AUTHORIZATION, "")
    return bearer[7:].strip() if bearer[:7].lower() == "bearer " else request.headers.get("x-api-key", "")


async def body_of(request: web.Request) -> bytes:
    """The body of a request that may hold JSON.

    Raises:
        RequestError: its content type is something else.
    """
    if hdrs.CONTENT_TYPE in request.headers and request.content_type not in JSON_TYPES and not request.content_type.endswith("+json"):
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


def readable(header: str) -> str:
    """A header, which may hold any bytes, as valid UTF-8."""
    return header if header.isascii() else header.encode(errors="surrogateescape").decode(errors="replace")


class EventStream(web.StreamResponse):
    """A streamed answer, whose head is sent together with its first part."""

    _send_headers_immediately = False


async def _stream(
    request: web.Request,
    dialect: Dialect[Any],
    asked: Any,
    first: ModelResponsePart,
    rest: AsyncIterator[ModelResponsePart],
    created: int,
    headers: dict[str, str],
) -> web.StreamResponse:
    """Send server-sent events, one per part."""
    response = EventStream(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **headers})
    add_request_id(request, response)
    await response.prepare(request)
    answer = dialect.answer(asked, created)
    part = first
    while not part.is_last():
        await response.write(answer.part(part))
        try:
            part = await anext(rest)
        except NoResponder:
            part = ModelResponsePart(error=STOPPING, error_status=503)
    await response.write_eof(answer.part(part))
    return response


@web.middleware
async def suspend_head_timer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Suspend the head timer of the connection while a request is handled."""
    assert isinstance(request.protocol, HttpConnection)
    with request.protocol:
        return await handler(request)


@web.middleware
async def with_request_id(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the id of the request to a response that has not begun."""
    response = await handler(request)
    if not response.prepared:
        add_request_id(request, response)
    return response


@web.middleware
async def errors_in_dialect_format(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return errors in the format of the API called: wrong fields and keys, refusals of aiohttp (path, method, size), failed handlers."""
    headers: dict[str, str] = {}
    field = code = ""
    try:
        return await handler(request)
    except RequestError as error:
        status, message, field, code = 400, str(error), error.field, error.code
    except RequestRefused as error:
        status, message, field = error.refusal.status, error.refusal.reason, error.refusal.field
        headers = {hdrs.RETRY_AFTER: str(math.ceil(error.refusal.retry_after))} if error.refusal.retry_after else {}
    except web.HTTPException as refused:
        status, message = _status_of(request, refused), _refusal_message(request, refused)
        headers = {name: value for name, value in refused.headers.items() if name in {hdrs.ALLOW, hdrs.CONNECTION}}
    except SessionError as error:
        status, message = MISDIRECTED if isinstance(error, SessionElsewhere) else 401, str(error)
    except NoResponder:
        status, message = 503, STOPPING
    except web.RequestPayloadError as error:
        status, message = 400, f"the body cannot be read: {error}; send it whole"
        headers[hdrs.CONNECTION] = "close"  # the start of the next request is unknown
    except ConnectionError:
        raise  # the client disconnected in mid-answer
    except Exception:
        logger.exception("a request failed", method=request.method, path=readable(request.path), request_id=id_of(request))
        if request.writer.output_size:
            raise  # the response has begun and can only be aborted
        status, message = 500, "the gateway failed; see its log"
    return as_json(dialect_of_path(_path_of(request)).error(readable(message), status, field, code), status, headers)


def _path_of(request: web.Request) -> str:
    """The path of the endpoint called; of one that does not exist, as the client sent it."""
    resource = request.match_info.route.resource
    return request.path if resource is None else resource.canonical


def id_of(request: web.Request) -> str:
    """The id of a request, for the response and the log."""
    known: str | None = request.get(REQUEST_ID)
    if known is None:
        known = request[REQUEST_ID] = f"req_{secrets.token_hex(12)}"
    return known


def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Add the request id under the name that the protocol called has for it: `request-id` in Anthropic's, `x-request-id` in others."""
    response.headers["request-id" if "/messages" in request.path else "x-request-id"] = id_of(request)


def _status_of(request: web.Request, refused: web.HTTPException) -> int:
    """The status of a refusal; 426 for a websocket, which makes Codex CLI send its request over HTTP."""
    wants_websocket = request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
    return 426 if wants_websocket and isinstance(refused, web.HTTPMethodNotAllowed) else refused.status


def _refusal_message(request: web.Request, refused: web.HTTPException) -> str:
    served = ", ".join([f"/v1/{dialect.path}" for dialect in DIALECTS])
    messages = {
        web.HTTPNotFound: f"there is no {request.path:.200}; this gateway serves {served} and the paths in GET /openapi.json",
        web.HTTPMethodNotAllowed: f"{request.path:.200} does not take {request.method}; "
        f"use {refused.headers.get(hdrs.ALLOW, 'another method')}",
        web.HTTPRequestEntityTooLarge: f"the request body is larger than {request.client_max_size // 2**20} MiB "
        "(`gateway.max_body_mb`); send less",
        web.HTTPUnsupportedMediaType: f"the request body is encoded as {request.headers.get(hdrs.CONTENT_ENCODING, ''):.40}; "
        "send it uncompressed, without Content-Encoding",
        web.HTTPRequestTimeout: f"the request body did not arrive within {BODY_SECONDS:g} s; send it at once",
    }
    return messages.get(type(refused), refused.reason)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "type": "model", "created": 0, "owned_by": "areal-actors", "display_name": name}


def as_json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON response."""
    return web.Response(body=_ENCODER.encode(body), status=status, content_type="application/json", headers=headers)
