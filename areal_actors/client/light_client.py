"""A client of chat completions and responses that costs a fraction of the OpenAI SDK's CPU time, with its call shape.

Requests are encoded and answers decoded by msgspec, without a check of their types; connections are shared by all
clients of an event loop, so that a client of its own for each episode costs nothing.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import EllipsisType, TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar, overload

import aiohttp
import msgspec

from areal_actors.client.answers import (
    AnswerObject,
    ChatCompletion,
    ChatCompletionChunk,
    ModelResponse,
    ResponseEvent,
)
from areal_actors.client.connections import open_pool, proxy_of, verification_of
from areal_actors.client.errors import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APITimeoutError,
    OpenAIError,
    status_error,
)
from areal_actors.client.retries import seconds_before_retry
from areal_actors.client.streams import AnswerStream

DEFAULT_BASE_URL = "https://api.openai.com/v1"
TIMEOUT_SECONDS = 600.0
CONNECT_SECONDS = 5.0
MAX_RETRIES = 2

T = TypeVar("T", bound=AnswerObject)


class CallOptions(NamedTuple):
    """Options of a single call, besides the fields of its request."""

    headers: Mapping[str, str] | None = None
    query: Mapping[str, str] | None = None
    timeout: float | EllipsisType | None = ...


class LightClient:
    """A client with the call shape of `openai.AsyncOpenAI`: `chat.completions.create` and `responses.create`.

    It holds no connections, so that it needs no `close`.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | EllipsisType | None = ...,
        max_retries: int = MAX_RETRIES,
        default_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the calls; `OPENAI_BASE_URL` and `OPENAI_API_KEY` are the defaults of the first two.

        Args:
            base_url: address of the server, with its version (`…/v1`).
            api_key: key of the calls.
            timeout: seconds for which the server may send nothing; None for no limit, 600 by default.
            max_retries: number of times that a call is sent again.
            default_headers: further headers of each call.

        Raises:
            OpenAIError: there is no key.
        """
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL).rstrip("/")
        key = os.environ.get("OPENAI_API_KEY") if api_key is None else api_key
        if key is None:
            raise OpenAIError("a client has no key: give `api_key`, or set OPENAI_API_KEY")
        self.api_key = key
        self.timeout = timeout
        self.max_retries = max_retries
        self.default_headers = dict(default_headers or {})
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "areal-actors",
            **self.default_headers,
        }

    @cached_property
    def chat(self) -> ChatCalls:
        """Chat completions."""
        return ChatCalls(self)

    @cached_property
    def responses(self) -> ResponseCalls:
        """Responses."""
        return ResponseCalls(self)

    def with_options(self, **options: Any) -> LightClient:
        """Return a client with these arguments in place of this one's."""
        return LightClient(
            **{
                "base_url": self.base_url,
                "api_key": self.api_key,
                "timeout": self.timeout,
                "max_retries": self.max_retries,
                "default_headers": self.default_headers,
                **options,
            }
        )

    async def close(self) -> None:
        """Return at once: connections belong to the event loop, and end with it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @cached_property
    def _connection(self) -> dict[str, Any]:
        """Arguments of the pool that the address alone decides."""
        return {"proxy": proxy_of(self.base_url), "ssl": verification_of(self.base_url)}

    async def ask(self, path: str, body: Mapping[str, Any], kind: type[T], options: CallOptions) -> T:
        """Send a call; returns the answer.

        Raises:
            APIError: it failed, after all retries.
        """
        content = await self._send(path, body, options, is_stream=False)
        try:
            fields = msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            raise APIResponseValidationError(f"the answer is not JSON: {content[:200]!r}") from error
        if not isinstance(fields, dict):
            raise APIResponseValidationError(f"the answer is not an object: {content[:200]!r}", body=fields)
        return kind(fields)

    async def ask_streamed(
        self, path: str, body: Mapping[str, Any], kind: type[T], options: CallOptions
    ) -> AnswerStream[T]:
        """Send a call; returns its answer as a stream, when it has begun. Raises like `ask`."""
        return AnswerStream(await self._send(path, body, options, is_stream=True), kind)

    async def _send(self, path: str, body: Mapping[str, Any], options: CallOptions, *, is_stream: bool) -> Any:
        """Send a call until it succeeds or may not be sent again; returns the content, or the response of a stream."""
        headers = {**self._headers, **(options.headers or {})}
        if self.max_retries:  # a server that knows the key gives a call that reached it twice the same answer
            headers.setdefault("Idempotency-Key", uuid.uuid4().hex)
        seconds = self.timeout if options.timeout is ... else options.timeout
        arguments = {
            "data": msgspec.json.encode(body, enc_hook=_to_plain),
            "headers": headers,
            "params": options.query,
            "timeout": _time_limits(seconds),
            **self._connection,
        }
        retries = 0
        while True:
            try:
                return await self._send_once(path, arguments, is_stream=is_stream)
            except APIError as error:
                wait = seconds_before_retry(error, retries) if retries < self.max_retries else None
                if wait is None:
                    raise
            await asyncio.sleep(wait)
            retries += 1

    async def _send_once(self, path: str, arguments: Mapping[str, Any], *, is_stream: bool) -> Any:
        pool = await open_pool()
        try:
            response = await pool.post(self.base_url + path, **arguments)
            if is_stream and response.status < 400:
                return response
            async with response:
                content = await response.read()
        except TimeoutError as error:
            raise APITimeoutError(f"Request timed out: {self.base_url}{path}") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise APIConnectionError(f"Connection error: {self.base_url}{path}: {reason}") from error
        if response.status >= 400:
            raise status_error(response.status, response.headers, content)
        return content


def _time_limits(seconds: float | EllipsisType | None) -> aiohttp.ClientTimeout:
    if seconds is ...:
        return DEFAULT_LIMITS
    if seconds is None:
        return NO_LIMITS
    return aiohttp.ClientTimeout(total=None, connect=seconds, sock_connect=seconds, sock_read=seconds)


DEFAULT_LIMITS = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=TIMEOUT_SECONDS)
NO_LIMITS = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
"""A server that cannot be reached is an error all the same."""


def _to_plain(value: Any) -> Any:
    """Return what JSON has in place of a value: fields of answers, and of models of pydantic, as the OpenAI SDK has."""
    if isinstance(value, AnswerObject):
        return value.__dict__
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(exclude_unset=True, mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"a request has a value that JSON cannot have: {value!r:.200}")


class ChatCalls:
    """The part `chat` of a client."""

    def __init__(self, client: LightClient) -> None:
        self.completions = CompletionCalls(client)


class CompletionCalls:
    """The part `chat.completions` of a client."""

    path = "/chat/completions"

    def __init__(self, client: LightClient) -> None:
        self._client = client

    @overload
    async def create(self, *, stream: Literal[True], **fields: Any) -> AnswerStream[ChatCompletionChunk]: ...
    @overload
    async def create(self, *, stream: Literal[False] | None = None, **fields: Any) -> ChatCompletion: ...
    async def create(self, *, stream: bool | None = None, **fields: Any) -> Any:
        """Call the model: with `model`, `messages`, and whatever else the protocol has, as with the OpenAI SDK.

        `extra_headers`, `extra_query`, `extra_body` and `timeout` are options of the call.

        Raises:
            APIError: it failed, after all retries.
        """
        body, options = _divide(fields)
        if not stream:
            return await self._client.ask(self.path, body, ChatCompletion, options)
        return await self._client.ask_streamed(self.path, {**body, "stream": True}, ChatCompletionChunk, options)


class ResponseCalls:
    """The part `responses` of a client."""

    path = "/responses"

    def __init__(self, client: LightClient) -> None:
        self._client = client

    @overload
    async def create(self, *, stream: Literal[True], **fields: Any) -> AnswerStream[ResponseEvent]: ...
    @overload
    async def create(self, *, stream: Literal[False] | None = None, **fields: Any) -> ModelResponse: ...
    async def create(self, *, stream: bool | None = None, **fields: Any) -> Any:
        """Call the model: with `model`, `input`, and whatever else the protocol has; see `CompletionCalls.create`."""
        body, options = _divide(fields)
        if not stream:
            return await self._client.ask(self.path, body, ModelResponse, options)
        return await self._client.ask_streamed(self.path, {**body, "stream": True}, ResponseEvent, options)


def _divide(fields: dict[str, Any]) -> tuple[dict[str, Any], CallOptions]:
    """Divide the arguments of a call into the body of its request and its options."""
    options = CallOptions(
        fields.pop("extra_headers", None), fields.pop("extra_query", None), fields.pop("timeout", ...)
    )
    extra = fields.pop("extra_body", None)
    return {**fields, **extra} if extra else fields, options
