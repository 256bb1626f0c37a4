"""What a dialect is: one wire format, its JSON to `CallModel` and the parts of the answer back to its JSON. No server in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from areal_actors.messages import CallModel, ModelAnswered

R = TypeVar("R")
"""The dialect's own request type, a msgspec struct."""


class EventStream(Protocol):
    """Server-sent events of one streamed answer, as bytes ready to be written."""

    def part(self, part: ModelAnswered) -> bytes:
        """Events for one part of the answer: those that open the stream before the first, those that close it after the last.

        A part with an error becomes the dialect's error event, and closes the stream.
        """
        ...


class Dialect(Protocol[R]):
    """One wire format."""

    name: str
    path: str
    """Where it is served, after `/v1/`."""
    request_type: type[R]

    def decode(self, body: bytes) -> R:
        """The request.

        Raises:
            RequestError: the body is no JSON, a field has the wrong type, or a field is not known; it names the field.
        """
        ...

    def call(self, request: R, session: str) -> CallModel:
        """The same, in our own words.

        Raises:
            RequestError: a field asks for what cannot be had; it names the field.
        """
        ...

    def streams(self, request: R) -> bool:
        """Whether the client wants events."""
        ...

    def whole(self, request: R, parts: Sequence[ModelAnswered], created: int) -> dict[str, Any]:
        """The answer's JSON, from one part per choice."""
        ...

    def events(self, request: R, created: int) -> EventStream:
        """A stream for this answer."""
        ...

    def error(self, message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:
        """The body of an error in the dialect's shape; `code` is OpenAI's word for the case."""
        ...


AnyDialect: TypeAlias = Dialect[Any]
