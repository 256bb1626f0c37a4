"""Streamed answers: server-sent events, each an object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

import aiohttp
import msgspec

from areal_actors.client.answers import AnswerObject
from areal_actors.client.errors import (
    APIConnectionError,
    APIResponseValidationError,
    APITimeoutError,
    stream_error,
)

T = TypeVar("T", bound=AnswerObject)
DONE = b"[DONE]"
END_SECONDS = 1.0
"""Time limit for the end of a response after its last event; a connection that has it is used again."""


class AnswerStream(Generic[T]):
    """Pieces of an answer, to iterate over once. Leaving it early ends the call."""

    def __init__(self, response: aiohttp.ClientResponse, kind: type[T]) -> None:
        self._response = response
        self._pieces = _read_pieces(response, kind)

    def __aiter__(self) -> AsyncIterator[T]:
        return self._pieces

    async def __anext__(self) -> T:
        return await anext(self._pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the call, unless it has ended."""
        self._response.close()
        await self._pieces.aclose()


async def _read_pieces(response: aiohttp.ClientResponse, kind: type[T]) -> AsyncGenerator[T, None]:
    """Yield the events of a response.

    Raises:
        APIError: an event reports an error, or is none; or the connection is lost.
    """
    try:
        async for data in _read_events(response.content):
            if data.startswith(DONE):
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_SECONDS):
                        await response.content.read()
                return
            fields = _decode_event(data)
            if error := fields.get("error"):
                raise stream_error(error)
            yield kind(fields)
    except TimeoutError as error:
        raise APITimeoutError("Request timed out: the stream stopped.") from error
    except (aiohttp.ClientError, OSError) as error:
        raise APIConnectionError(f"Connection error: the stream broke off: {error}") from error
    finally:
        response.close()


def _decode_event(data: bytes) -> dict[str, object]:
    try:
        fields = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise APIResponseValidationError(f"an event of the stream is not JSON: {data[:200]!r}") from error
    if not isinstance(fields, dict):
        raise APIResponseValidationError(f"an event of the stream is not an object: {data[:200]!r}")
    return fields


async def _read_events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event; comments and other fields are left out."""
    rest = b""
    data: list[bytes] = []
    async for received in content.iter_any():
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                data.append(text[5:].removeprefix(b" "))
            elif not text and data:
                yield b"\n".join(data)
                data = []
