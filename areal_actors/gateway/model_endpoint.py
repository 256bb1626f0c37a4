"""A model call over HTTP: its body as a `ModelRequest`, and the parts of its answer as JSON or as events.

It has no code of a server: a call comes with its headers and its body, however they were read.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec

from areal_actors.core.byte_stream_split import set_fields
from areal_actors.gateway.conversations.message_digests import LONG_HISTORY_BYTES
from areal_actors.gateway.event_stream import EventSink, LiveStream
from areal_actors.gateway.http_answers import STOPPING, readable
from areal_actors.gateway.long_work import LONG_BYTES, LongWork
from areal_actors.gateway.parsed_histories import ParsedHistories
from areal_actors.gateway.protocols.base import AnswerWriter, Dialect
from areal_actors.gateway.protocols.lenient import accept
from areal_actors.gateway.protocols.trace_context import TRACEPARENT, read_trace
from areal_actors.gateway.settings import GatewaySettings, UnknownFields
from areal_actors.messages import ModelRequest, ModelResponsePart
from areal_actors.runtime.actor import Submit
from areal_bus.errors import NoResponder

REQUEST_IDS = ("idempotency-key", "x-client-request-id")
"""Headers with a client's request id, for the deduplication of retries."""
CLIENT_SESSION = "x-session-id"
"""Header with the name of a conversation at the client, which separates the agents of one episode."""
LONGEST_NAME = 256
IGNORED = "x-areal-ignored"
"""Response header that lists what the request had and is accepted without effect."""
MAX_IGNORED = 1000
"""Maximum length of its value, without the `...` at its end: clients limit the size of headers."""
PARSED_IN_PLACE: Final = 8
"""Times the size of a long request up to which one is parsed in place: it takes 5 ms, for which a thread would hold the
interpreter, too."""

S = TypeVar("S", bound=EventSink)


class JsonAnswer(msgspec.Struct, frozen=True):
    """A whole answer."""

    body: Any
    """To be encoded as JSON."""
    status: int = 200
    headers: dict[str, str] = {}


class ModelEndpoint:
    """Answers the calls of one dialect."""

    def __init__(
        self,
        dialect: Dialect[Any],
        config: GatewaySettings,
        submit: Submit,
        long_work: LongWork,
        histories: ParsedHistories,
    ) -> None:
        """`long_work` parses long requests, of which `histories` keeps the messages."""
        self.dialect, self.config, self.submit = dialect, config, submit
        self.long_work, self.histories = long_work, histories

    async def answer(
        self, session: str, headers: Mapping[str, str], body: bytes, open_stream: Callable[[dict[str, str]], S]
    ) -> JsonAnswer | S:
        """Answer a call of a session.

        `headers` are found by their names in lower case; `open_stream` makes the answer to be streamed, with headers.
        Returns what it made if the answer was sent so, and else the whole answer.

        Raises:
            RequestError: the request is not valid.
            NoResponder: the gateway is stopping.
        """
        dialect, created = self.dialect, int(time.time())
        if len(body) < PARSED_IN_PLACE * LONG_BYTES:
            asked, question, ignored = self._parse(body, session)
        else:
            asked, question, ignored = await self.long_work.run(
                len(body) // PARSED_IN_PLACE, self._parse, body, session
            )
        ignored = self._complete(question, headers, ignored)
        sent = {IGNORED: ", ".join(ignored)} if ignored else {}
        parts = self.submit(question)
        try:
            if question.stream:
                sink = open_stream(sent)
                stream = LiveStream(sink, dialect.keep_alive, self.config.keep_alive_seconds)
                answers = await _stream(stream, dialect.answer(asked, created), parts)
                if stream.has_begun:
                    return sink
            else:
                answers = [await anext(parts)]
                while not answers[-1].is_last():
                    answers.append(await anext(parts))
        finally:
            await parts.aclose()
        if without_effect := answers[0].ignored:
            sent = {IGNORED: ", ".join(without_effect)}
        for part in answers:
            if part.error:
                error = dialect.error(part.error, part.error_status, part.error_field, part.error_code)
                return JsonAnswer(error, part.error_status, sent)
        if len(answers) > 1:
            answers.sort(key=lambda part: part.choice)
        return JsonAnswer(dialect.answer(asked, created).whole(answers), 200, sent)

    def _complete(self, question: ModelRequest, headers: Mapping[str, str], ignored: Sequence[str]) -> tuple[str, ...]:
        """Set the fields of a call that its headers have; returns what has no effect."""
        if self.dialect.ignored_headers:
            ignored = [*ignored, *(name for name in self.dialect.ignored_headers if name in headers)]
        listed = _shorten_names(ignored) if ignored else ()
        fields: dict[str, Any] = {}
        if TRACEPARENT in headers:
            fields["trace"], invalid = read_trace(headers, self.config.recorded_baggage)
            listed = (*listed, *invalid)
        if listed:
            fields["ignored"] = listed
        for header in REQUEST_IDS:
            if request_id := headers.get(header):
                fields["request_id"] = readable(request_id)
                break
        if client_session := headers.get(CLIENT_SESSION):
            fields["client_session"] = readable(client_session)[:LONGEST_NAME]
        if fields:
            set_fields(question, **fields)
        return listed

    def _parse(self, body: bytes, session: str) -> tuple[Any, ModelRequest, Sequence[str]]:
        """A body as parsed by its dialect, as a `ModelRequest`, and what it has that is ignored."""
        parsed = self.histories.parse(self.dialect, body, session) if len(body) >= LONG_HISTORY_BYTES else None
        asked, call, ignored = parsed or _parse_anew(self.dialect, body, session, self.config.unknown_fields)
        set_fields(call, body_bytes=len(body))
        return asked, call, ignored


def _parse_anew(
    dialect: Dialect[Any], body: bytes, session: str, unknown: UnknownFields
) -> tuple[Any, ModelRequest, Sequence[str]]:
    if unknown == "list":
        asked, call, left_out = accept(dialect, body, session)
    else:
        asked, left_out = dialect.decode(body), ()
        call = dialect.call(asked, session)
    ignored = dialect.ignored(asked)
    return asked, call, [*left_out, *ignored] if left_out else ignored


def _shorten_names(ignored: Sequence[str]) -> tuple[str, ...]:
    """The ignored names, in at most `MAX_IGNORED` characters; `...` stands for the rest."""
    ends = accumulate(len(name) + 2 for name in ignored)
    kept = [one for one, end in zip(ignored, ends, strict=True) if end <= MAX_IGNORED]
    return (*kept, "...") if len(kept) < len(ignored) else tuple(kept)


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
