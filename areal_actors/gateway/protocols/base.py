"""A dialect: one wire format, whose JSON becomes a `ModelRequest` and the answer's parts its JSON again.

It has no code of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from areal_actors.gateway.protocols.fields import RequestStruct, decode, ignored_fields
from areal_actors.messages import ModelRequest, ModelResponsePart

R = TypeVar("R", bound=RequestStruct)
"""The dialect's request type."""

JSON = msgspec.json.Encoder()


class AnswerWriter(Protocol):
    """The answer to one request, whole or streamed."""

    def whole(self, parts: Sequence[ModelResponsePart]) -> dict[str, Any]:
        """Return the JSON of the whole answer, from one part per choice, in order."""
        ...

    def part(self, part: ModelResponsePart) -> bytes:
        """Return the server-sent events for one part; the first part also opens the stream, the last one closes it.

        A part with an error becomes the dialect's error event and closes the stream.
        """
        ...


class ErrorBody(Protocol):
    """Function that returns the body of an error in a dialect's format; `code` is OpenAI's error code."""

    def __call__(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
        """Return the body."""
        ...


@dataclass(frozen=True)
class Dialect(Generic[R]):
    """One wire format."""

    name: str
    path: str
    """HTTP path after `/v1/`."""
    summary: str
    """Summary of the endpoint, for the OpenAPI description."""
    request_type: type[R]
    call: Callable[[R, str], ModelRequest]
    """Converts a request of this session to a model call; raises RequestError, which names the field that is not
    supported."""
    answer: Callable[[R, int], AnswerWriter]
    """Begins the answer to a request of this time, in seconds."""
    error: ErrorBody
    ignored: Callable[[R], Sequence[str]] = ignored_fields
    """Returns what the client sent and is accepted without effect, as paths of fields."""
    element_types: Mapping[str, Callable[[dict[str, Any]], type[RequestStruct] | None]] = field(default_factory=dict)
    """For lists of free objects, by their path: the function that returns the type of an element; None if it is
    unknown."""
    keep_alive: bytes = b": keep-alive\n\n"
    """Sign of life of a stream: a comment, which clients skip."""
    ignored_headers: tuple[str, ...] = ()
    """Request headers that are accepted without effect."""

    def decode(self, body: bytes) -> R:
        """Decode a request.

        Raises:
            RequestError: the body is not JSON, or a field is unknown or has the wrong type; it names the field.
        """
        return decode(body, self.request_type)


AnyDialect: TypeAlias = Dialect[Any]


def named_event(kind: str, **fields: Any) -> bytes:
    """Return a server-sent event whose name and `type` are `kind`."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), JSON.encode({"type": kind, **fields}))
