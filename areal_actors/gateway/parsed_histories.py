"""Messages of long requests, parsed once: clients send all messages of a conversation again with each call.

A request whose array of messages begins with all bytes of the one before in its session has the same messages there,
and only those after them are parsed. Anything unusual is left to the ordinary way, which names faults by their field.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import msgspec
import xxhash

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.base import Dialect
from areal_actors.gateway.protocols.chat_completions import CHAT, ChatRequest, chat_call, chat_ignored
from areal_actors.gateway.protocols.chat_messages import ChatMessage
from areal_actors.gateway.protocols.message_builder import MessageBuilder
from areal_actors.messages import ModelRequest

MOST_BYTES = 64 << 20
"""Size of all messages that are kept, as JSON."""
BLANKS = b" \t\r\n"


ParsedRequest = tuple[ChatRequest, ModelRequest, Sequence[str]]
"""A request, its model call, and what of it is accepted without effect."""


class _Parsed(NamedTuple):
    """Messages of a request."""

    size: int
    """Bytes of the JSON of the array, without what follows the last message."""
    digest: bytes
    """Hash of these bytes."""
    messages: list[ChatMessage]
    builder: MessageBuilder
    """The same messages as the gateway has them; not changed any more."""


_RawRequest = msgspec.defstruct(
    "_RawRequest",
    [
        ("messages", msgspec.Raw) if field.name == "messages" else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(ChatRequest)
    ],
    kw_only=True,
    forbid_unknown_fields=True,
)
"""A `ChatRequest` whose messages are not parsed."""
_requests: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_RawRequest)
_messages = msgspec.json.Decoder(list[ChatMessage])


class ParsedHistories:
    """Messages of the sessions that sent long requests last."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.size = 0
        """Bytes of all messages, as JSON."""
        self.reused = 0
        """Number of requests of which only the last messages were parsed."""
        self._parsed: OrderedDict[str, _Parsed] = OrderedDict()
        self._lock = Lock()

    def parse(self, dialect: Dialect[Any], body: bytes, session: str) -> ParsedRequest | None:
        """Returns a request of `LONG_HISTORY_BYTES` or more; None if it is to be parsed in the ordinary way."""
        if dialect is not CHAT:
            return None
        try:
            request = _requests.decode(body)
            parsed = self._parse_messages(bytes(request.messages), session)
            if not parsed.messages:
                return None
            others = {name: getattr(request, name) for name in request.__struct_fields__ if name != "messages"}
            asked = ChatRequest(messages=parsed.messages, **others)
            call = chat_call(asked, session, parsed.builder)
        except (RequestError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        self._keep(session, parsed)
        return asked, call, chat_ignored(asked, plain_text=call.plain_text)

    def _parse_messages(self, text: bytes, session: str) -> _Parsed:
        size = len(text[:-1].rstrip(BLANKS))
        digest = xxhash.xxh3_128_digest(memoryview(text)[:size])
        with self._lock:
            before = self._parsed.get(session)
        builder, earlier = MessageBuilder(), list[ChatMessage]()
        if before is not None and xxhash.xxh3_128_digest(memoryview(text)[: before.size]) == before.digest:
            rest = text[before.size :].lstrip(BLANKS)
            builder, earlier, text = before.builder.copy(), before.messages, b"[" + rest.removeprefix(b",")
            self.reused += 1
        new = _messages.decode(text)
        builder.add_all(new, "messages", start=len(earlier))
        return _Parsed(size, digest, [*earlier, *new], builder)

    def _keep(self, session: str, parsed: _Parsed) -> None:
        with self._lock:
            if (before := self._parsed.pop(session, None)) is not None:
                self.size -= before.size
            self._parsed[session] = parsed
            self.size += parsed.size
            while self.size > self.most_bytes:
                self.size -= self._parsed.popitem(last=False)[1].size
