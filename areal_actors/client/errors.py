"""Errors of model calls, with the names and attributes of the OpenAI SDK's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class OpenAIError(Exception):
    """A model call failed, or a client cannot be made."""


class APIError(OpenAIError):
    """A model call failed."""

    def __init__(self, message: str, *, body: Any = None) -> None:
        """`body` is the server's description of the error, decoded where it is JSON."""
        super().__init__(message)
        self.message = message
        self.body = body
        described = body if isinstance(body, Mapping) else {}
        code = described.get("code")
        self.code: str | None = None if code is None else str(code)
        self.param: Any = described.get("param")
        self.type: Any = described.get("type")


class APIConnectionError(APIError):
    """The server could not be reached, or the connection was lost; `__cause__` has the reason."""


class APITimeoutError(APIConnectionError):
    """The server did not answer in time."""


class APIResponseValidationError(APIError):
    """The answer is not what the protocol has."""


class APIStatusError(APIError):
    """The server answered with a status from 400 on."""

    def __init__(self, message: str, *, status_code: int, headers: Mapping[str, str], body: Any) -> None:
        super().__init__(message, body=body)
        self.status_code = status_code
        self.headers = headers
        self.request_id = headers.get("x-request-id")


class BadRequestError(APIStatusError):
    """Status 400."""


class AuthenticationError(APIStatusError):
    """Status 401."""


class PermissionDeniedError(APIStatusError):
    """Status 403."""


class NotFoundError(APIStatusError):
    """Status 404."""


class ConflictError(APIStatusError):
    """Status 409."""


class UnprocessableEntityError(APIStatusError):
    """Status 422."""


class RateLimitError(APIStatusError):
    """Status 429."""


class InternalServerError(APIStatusError):
    """A status from 500 on."""


BY_STATUS: Mapping[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error(status: int, headers: Mapping[str, str], content: bytes) -> APIStatusError:
    """Return the error of an answer with this status and content."""
    body: Any = content.decode(errors="replace").strip()
    message = f"Error code: {status}"
    try:
        body = msgspec.json.decode(content)
    except msgspec.DecodeError:
        message += f" - {body[:1000]}" if body else ""
    if isinstance(body, dict):
        body = body.get("error", body)
        if isinstance(body, dict) and isinstance(text := body.get("message"), str) and text:
            message += f" - {text}"
    kind = BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    return kind(message, status_code=status, headers=headers, body=body)


def stream_error(error: Any) -> APIError:
    """Return the error that an event of a stream reports."""
    message = error.get("message") if isinstance(error, dict) else None
    return APIError(message if isinstance(message, str) and message else f"the stream reports {error!r}", body=error)
