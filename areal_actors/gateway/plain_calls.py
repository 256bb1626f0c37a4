"""Model calls that are plain requests: answered on their connection, without aiohttp's routes and middlewares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from areal_actors.core.errors import RequestError, SessionError
from areal_actors.core.plain_connections import PlainConnection, PlainStream, send_whole
from areal_actors.core.plain_requests import PlainRequest
from areal_actors.gateway.event_stream import EVENTS
from areal_actors.gateway.http_answers import (
    FAILED,
    RequestRefused,
    failure_of,
    log_failure,
    new_request_id,
    request_id_header,
    to_json,
)
from areal_actors.gateway.model_endpoint import JsonAnswer, ModelEndpoint
from areal_bus.errors import NoResponder

PATHS = ("", "/v1", "/v1/v1")
"""Before the path of a dialect, with a session's name before it or without."""
JSON = {"Content-Type": "application/json"}


class PlainCalls:
    """Finds the endpoint of a call, and sends its answer or its failure."""

    def __init__(
        self, endpoints: Mapping[str, ModelEndpoint], types: tuple[str, ...], session_of_key: Callable[[str, str], str]
    ) -> None:
        """`endpoints` by the paths of their dialects; `types` are content types of JSON."""
        self._endpoints = {f"{before}/{path}": endpoint for before in PATHS for path, endpoint in endpoints.items()}
        self._types = types
        self._session_of_key = session_of_key

    def _find(self, path: str) -> tuple[ModelEndpoint | None, str]:
        """Returns the endpoint at a path, and the session in it; None for any other path."""
        if (endpoint := self._endpoints.get(path)) is not None:
            return endpoint, ""
        session, _, rest = path[1:].partition("/")
        return self._endpoints.get(f"/{rest}"), session

    def accepts(self, path: str, headers: Mapping[str, str]) -> bool:
        """True if this is the path of a model call, with a body that may be JSON."""
        kind = headers.get("content-type", "application/json")
        return self._find(path)[0] is not None and (
            kind == "application/json" or kind.partition(";")[0].strip().lower() in self._types
        )

    async def answer(self, request: PlainRequest, connection: PlainConnection) -> None:
        """Answer a call; what fails has the answer that it has everywhere.

        Raises:
            ConnectionError: the client is gone.
        """
        header, identifier = request_id_header(request.path), new_request_id()
        streams: list[PlainStream] = []
        try:
            answer = await self._answer(request, connection, {header: identifier}, streams)
        except (RequestError, RequestRefused, SessionError, NoResponder) as error:
            failure = failure_of(error)
        except ConnectionError:
            raise
        except Exception as error:
            log_failure(error, "POST", request.path, identifier)
            if any(stream.prepared for stream in streams):
                raise  # the answer has begun and can only be broken off
            failure = FAILED
        else:
            if answer is not None:
                send_whole(
                    connection, answer.status, {**JSON, header: identifier, **answer.headers}, to_json(answer.body)
                )
            return
        body = to_json(failure.body(request.path))
        send_whole(connection, failure.status, {**JSON, header: identifier, **failure.headers}, body)

    async def _answer(
        self, request: PlainRequest, connection: PlainConnection, headers: dict[str, str], streams: list[PlainStream]
    ) -> JsonAnswer | None:
        """Returns the whole answer; None if it was streamed."""
        endpoint, named = self._find(request.path)
        assert endpoint is not None
        session = self._session_of_key(key_in(request.headers), named)

        def open_stream(more: dict[str, str]) -> PlainStream:
            streams.append(PlainStream(connection, {**EVENTS, **more, **headers}))
            return streams[-1]

        sent = await endpoint.answer(session, request.headers, request.body, open_stream)
        return sent if isinstance(sent, JsonAnswer) else None


def key_in(headers: Mapping[str, str]) -> str:
    """The API key in the headers of a request, found by their names in lower case; empty if they have none."""
    bearer = headers.get("authorization", "")
    return bearer[7:].strip() if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")
