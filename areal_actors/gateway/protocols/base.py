"""Interface of a dialect: one wire format, whose JSON becomes a `ModelRequest` and the answer's parts its JSON again. No server code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from areal_actors.messages import ModelRequest, ModelResponsePart

R = TypeVar("R")
"""The dialect's request type, a msgspec struct."""


class EventStream(Protocol):
    """Server-sent events of one streamed answer, as bytes ready to be written."""

    def part(self, part: ModelResponsePart) -> bytes:
        """Return the events for one part of the answer; the first part also opens the stream, the last one closes it.

        A part with an error becomes the dialect's error event and closes the stream.
        """
        ...


class Dialect(Protocol[R]):
    """One wire format."""

    name: str
    path: str
    """HTTP path after `/v1/`."""
    request_type: type[R]

    def decode(self, body: bytes) -> R:
        """Decode a request.

        Raises:
            RequestError: the body is not JSON, or a field is unknown or has the wrong type; it names the field.
        """
        ...

    def call(self, request: R, session: str) -> ModelRequest:
        """Convert the request to a model call.

        Raises:
            RequestError: a field has a value that is not supported; it names the field.
        """
        ...

    def is_streaming(self, request: R) -> bool:
        """True if the client requests a stream of events."""
        ...

    def response_body(self, request: R, parts: Sequence[ModelResponsePart], created: int) -> dict[str, Any]:
        """Return the answer's JSON, from one part per choice."""
        ...

    def events(self, request: R, created: int) -> EventStream:
        """Return an event stream for this answer."""
        ...

    def error(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
        """Return the body of an error in the dialect's format; `code` is OpenAI's error code."""
        ...


AnyDialect: TypeAlias = Dialect[Any]
