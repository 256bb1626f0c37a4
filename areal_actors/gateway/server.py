"""The gateway: the aiohttp server that agents call. It translates requests; the session manager answers them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from itertools import accumulate
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
from aiohttp import hdrs, web

import areal_actors
from areal_actors.core.errors import RequestError, SetupError
from areal_actors.core.http_connections import HttpListener, answer_in_place, most_connections
from areal_actors.gateway.conversations.message_digests import LONG_HISTORY_BYTES
from areal_actors.gateway.event_stream import LiveStream
from areal_actors.gateway.http_answers import (
    BODY_SECONDS,
    STOPPING,
    Handler,
    add_request_id,
    as_json,
    errors_in_dialect_format,
    readable,
    with_request_id,
)
from areal_actors.gateway.listening import encryption
from areal_actors.gateway.parsed_histories import ParsedHistories
from areal_actors.gateway.protocols import DIALECTS
from areal_actors.gateway.protocols.base import AnswerWriter, Dialect
from areal_actors.gateway.protocols.lenient import accept
from areal_actors.gateway.protocols.openapi import GATEWAY_ENDPOINTS, openapi
from areal_actors.gateway.protocols.session_requests import ENDPOINTS
from areal_actors.gateway.protocols.trace_context import read_trace
from areal_actors.gateway.settings import GatewaySettings, UnknownFields
from areal_actors.messages import ModelRequest, ModelResponsePart
from areal_actors.runtime.actor import Submit
from areal_bus.errors import NoResponder

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
REQUEST_IDS = ("Idempotency-Key", "X-Client-Request-Id")
"""Headers with a client's request id, for the deduplication of retries."""
CLIENT_SESSION = "X-Session-ID"
"""Header with the name of a conversation at the client, which separates the agents of one episode."""
LONGEST_NAME = 256
PREFIXES = ("", "/v1", "/v1/v1", "/{session}/v1", "/{session}/v1/v1", "/{session}")
"""Before the paths of the model; the router tries those with a session in this order. Anthropic's clients append `/v1`
to an address that may end with it already."""
IGNORED = "x-areal-ignored"
"""Response header that lists what the request had and is accepted without effect."""
MAX_IGNORED = 1000
"""Maximum length of its value, without the `...` at its end: clients limit the size of headers."""

LONG_BYTES: Final = 128 << 10
"""Size from which a request is long: tokenizing it takes a sixth of a second, which would block all other calls."""
PARSED_IN_PLACE: Final = 8
"""Times that size up to which a request is parsed in place: it takes 5 ms, for which a thread would hold the
interpreter, too."""

P = ParamSpec("P")
R = TypeVar("R")


class LongWork(ThreadPoolExecutor):
    """A small thread pool for long requests.

    Tokenizers release the GIL, and Python code alternates with the event loop.
    """

    async def run(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function: inline for a short request, in a thread for a long one."""
        if size < LONG_BYTES:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self, partial(function, *args, **kwargs))


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
        app = web.Application(
            client_max_size=self.config.max_body_mb * 2**20,
            middlewares=[suspend_head_timer, with_request_id, errors_in_dialect_format],
        )
        for prefix in PREFIXES:
            for dialect in DIALECTS:
                app.router.add_post(f"{prefix}/{dialect.path}", self._handler_of(dialect))
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
        self._listener = HttpListener(self._runner.server, self.config.head_seconds, most_connections())
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

    def _handler_of(self, dialect: Dialect[Any]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            session = self.session_of(request)
            body = await body_of(request)
            asked, question, ignored = await self.long_work.run(
                len(body) // PARSED_IN_PLACE,
                _parse_request,
                dialect,
                body,
                session,
                self.config.unknown_fields,
                self.histories,
            )
            ignored = _shorten_names([*ignored, *[name for name in dialect.ignored_headers if name in request.headers]])
            trace, invalid = read_trace(request.headers, self.config.recorded_baggage)
            ignored = (*ignored, *invalid)
            request_id = next((name for header in REQUEST_IDS if (name := request.headers.get(header))), "")
            client_session = request.headers.get(CLIENT_SESSION, "")
            question = msgspec.structs.replace(
                question,
                request_id=readable(request_id),
                ignored=ignored,
                client_session=readable(client_session)[:LONGEST_NAME],
                trace=trace,
            )
            created = int(time.time())
            headers = {IGNORED: ", ".join(ignored)} if ignored else {}
            async with aclosing(self.submit(question)) as parts:
                if question.stream:
                    stream = LiveStream(request, headers, dialect.keep_alive, self.config.keep_alive_seconds)
                    add_request_id(request, stream.response)
                    answers = await _stream(stream, dialect.answer(asked, created), parts)
                    if stream.has_begun:
                        return stream.response
                else:
                    answers = [await anext(parts)]
                    while not answers[-1].is_last():
                        answers.append(await anext(parts))
            if without_effect := answers[0].ignored:
                headers = {IGNORED: ", ".join(without_effect)}
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


def _parse_request(
    dialect: Dialect[Any], body: bytes, session: str, unknown: UnknownFields, histories: ParsedHistories
) -> tuple[Any, ModelRequest, Sequence[str]]:
    """A body as parsed by its dialect, as a `ModelRequest`, and what it has that is ignored."""
    if len(body) >= LONG_HISTORY_BYTES and (parsed := histories.parse(dialect, body, session)) is not None:
        asked, call, ignored = parsed
        return asked, msgspec.structs.replace(call, body_bytes=len(body)), ignored
    if unknown == "list":
        asked, call, left_out = accept(dialect, body, session)
    else:
        asked, left_out = dialect.decode(body), ()
        call = dialect.call(asked, session)
    return asked, msgspec.structs.replace(call, body_bytes=len(body)), [*left_out, *dialect.ignored(asked)]


def _shorten_names(ignored: Sequence[str]) -> tuple[str, ...]:
    """The ignored names, in at most `MAX_IGNORED` characters; `...` stands for the rest."""
    if not ignored:
        return ()
    ends = accumulate(len(name) + 2 for name in ignored)
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


async def _stream(
    stream: LiveStream, answer: AnswerWriter, parts: AsyncIterator[ModelResponsePart]
) -> list[ModelResponsePart]:
    """Send server-sent events, one per part. Returns the error of a call that failed before anything was sent.

    Raises:
        NoResponder: the gateway is stopping, and nothing was sent.
    """
    async with stream.keep_alive():
        part = await _next_part(stream, parts)
        if part.error and not stream.has_begun:
            return [part]
        comment = stream.set_header(IGNORED, ", ".join(part.ignored)) if part.ignored else b""
        while not part.is_last():
            await stream.write(comment + answer.part(part))
            comment = b""
            part = await _next_part(stream, parts)
    await stream.finish(comment + answer.part(part))
    return []


async def _next_part(stream: LiveStream, parts: AsyncIterator[ModelResponsePart]) -> ModelResponsePart:
    try:
        return await anext(parts)
    except NoResponder:
        if not stream.has_begun:
            raise
        return ModelResponsePart(error=STOPPING, error_status=503)


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
