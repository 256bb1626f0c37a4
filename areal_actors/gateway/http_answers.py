"""Answers of the gateway's server: JSON, request ids, and errors in the format of the API that was called."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import structlog
from aiohttp import hdrs, web

from areal_actors.core.errors import RequestError, SessionElsewhere, SessionError
from areal_actors.gateway.protocols import DIALECTS, dialect_of_path
from areal_actors.messages import Refusal
from areal_bus.errors import NoResponder

BODY_SECONDS = 30.0
"""Time limit for a request's body; slower or broken bodies would hold a connection for nothing."""
MISDIRECTED = 421
"""HTTP status of requests for a session of another gateway."""
GOOGLE = (":generateContent", ":streamGenerateContent", ":countTokens")
"""Ends of paths of Google's protocol."""
STOPPING = "the gateway is stopping; retry when it is back"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID = web.RequestKey("request_id", str)

_PROCESS = secrets.token_hex(6)
"""Part of the ids that no other process has."""
_NUMBERS = itertools.count(1)
_ENCODER = msgspec.json.Encoder()
logger = structlog.get_logger(__name__)


class RequestRefused(Exception):
    """Raised to answer a request with this refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def readable(header: str) -> str:
    """A header, which may hold any bytes, as valid UTF-8."""
    return header if header.isascii() else header.encode(errors="surrogateescape").decode(errors="replace")


@web.middleware
async def with_request_id(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the id of the request to a response that has not begun."""
    response = await handler(request)
    if not response.prepared:
        add_request_id(request, response)
    return response


@web.middleware
async def errors_in_dialect_format(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return errors in the format of the API called.

    They are wrong fields and keys, refusals of aiohttp (path, method, size), and failed handlers.
    """
    try:
        return await handler(request)
    except (RequestError, RequestRefused, SessionError, NoResponder) as error:
        failure = failure_of(error)
    except web.HTTPException as refused:
        status, message = _status_of(request, refused), _refusal_message(request, refused)
        headers = {name: value for name, value in refused.headers.items() if name in {hdrs.ALLOW, hdrs.CONNECTION}}
        failure = Failure(status, message, headers=headers)
    except web.RequestPayloadError as error:
        # The connection is closed: the start of the next request is unknown.
        reason = f"the body cannot be read: {error}; send it whole"
        failure = Failure(400, reason, headers={hdrs.CONNECTION: "close"})
    except ConnectionError:
        raise  # the client disconnected in mid-answer
    except Exception as error:
        log_failure(error, request.method, request.path, id_of(request))
        if request.writer.output_size:
            raise  # the response has begun and can only be aborted
        failure = FAILED
    return as_json(failure.body(_path_of(request)), failure.status, failure.headers)


class Failure(NamedTuple):
    """The error with which a request is answered."""

    status: int
    message: str
    field: str = ""
    code: str = ""
    headers: dict[str, str] = {}

    def body(self, path: str) -> dict[str, Any]:
        """Returns the error in the format of the API at this path."""
        return dialect_of_path(path).error(readable(self.message), self.status, self.field, self.code)


FAILED = Failure(500, "the gateway failed; see its log")


def failure_of(error: RequestError | RequestRefused | SessionError | NoResponder) -> Failure:
    """Returns the answer to a request that is refused with this error."""
    match error:
        case RequestError():
            return Failure(400, str(error), error.field, error.code)
        case RequestRefused(refusal=refusal):
            wait: dict[str, str] = (
                {hdrs.RETRY_AFTER: str(math.ceil(refusal.retry_after))} if refusal.retry_after else {}
            )
            return Failure(refusal.status, refusal.reason, refusal.field, headers=wait)
        case SessionError():
            return Failure(MISDIRECTED if isinstance(error, SessionElsewhere) else 401, str(error))
    return Failure(503, STOPPING)


def log_failure(error: Exception, method: str, path: str, request_id: str) -> None:
    """Log the error of a request."""
    logger.error("a request failed", method=method, path=readable(path), request_id=request_id, exc_info=error)


def _path_of(request: web.Request) -> str:
    """The path of the endpoint called; of one that does not exist, as the client sent it."""
    resource = request.match_info.route.resource
    return request.path if resource is None else resource.canonical


def id_of(request: web.Request) -> str:
    """The id of a request, for the response and the log."""
    request_id: str | None = request.get(REQUEST_ID)
    if request_id is None:
        request_id = request[REQUEST_ID] = new_request_id()
    return request_id


def new_request_id() -> str:
    """Returns an id that no other request has."""
    return f"req_{_PROCESS}{next(_NUMBERS):012x}"


def request_id_header(path: str) -> str:
    """Returns the name that the protocol called has for the id of a request.

    `request-id` in Anthropic's, `x-request-id` in others.
    """
    return "request-id" if "/messages" in path else "x-request-id"


def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Add the id of the request under the name that the protocol called has for it."""
    response.headers[request_id_header(request.path)] = id_of(request)


def _status_of(request: web.Request, refused: web.HTTPException) -> int:
    """The status of a refusal; 426 for a websocket, which makes Codex CLI send its request over HTTP."""
    wants_websocket = request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
    return 426 if wants_websocket and isinstance(refused, web.HTTPMethodNotAllowed) else refused.status


def _refusal_message(request: web.Request, refused: web.HTTPException) -> str:
    served = ", ".join([f"/v1/{dialect.path}" for dialect in DIALECTS])
    if request.path.endswith(GOOGLE):
        return f"Google's protocol (generateContent) is not served: let the agent call {served}"
    messages = {
        web.HTTPNotFound: (
            f"there is no {request.path:.200}; this gateway serves {served} and the paths in GET /openapi.json"
        ),
        web.HTTPMethodNotAllowed: (
            f"{request.path:.200} does not take {request.method}; "
            f"use {refused.headers.get(hdrs.ALLOW, 'another method')}"
        ),
        web.HTTPRequestEntityTooLarge: (
            f"the request body is larger than {request.client_max_size // 2**20} MiB (`gateway.max_body_mb`); send less"
        ),
        web.HTTPUnsupportedMediaType: (
            f"the request body is encoded as {request.headers.get(hdrs.CONTENT_ENCODING, ''):.40}; "
            "send it uncompressed, without Content-Encoding"
        ),
        web.HTTPRequestTimeout: f"the request body did not arrive within {BODY_SECONDS:g} s; send it at once",
    }
    return messages.get(type(refused), refused.reason)


def to_json(body: Any) -> bytes:
    """Returns a body in JSON."""
    return _ENCODER.encode(body)


def as_json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON response."""
    return web.Response(body=to_json(body), status=status, content_type="application/json", headers=headers)
