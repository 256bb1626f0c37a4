"""The answer of Anthropic's dialect: content blocks, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from areal_actors.gateway.protocols.base import named_event
from areal_actors.messages import ModelResponsePart

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
UNPARSED = "unparsed_arguments"
"""Key of arguments that are not a JSON object, as text: `input` has to be an object."""
WIRE_NAMES = {
    "continues": "thread.previous_message_id",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
}
"""Fields of `ModelRequest` that have another name in this dialect."""


class MessageAnswer:
    """One message; streamed, one content block is open at a time."""

    def __init__(self, model: str, *, reports_edits: bool = False) -> None:
        """With `reports_edits` the answer states that no edit of the context was applied."""
        self._model = model
        self._edits: dict[str, Any] = {"context_management": {"applied_edits": []}} if reports_edits else {}
        self._interaction = ""
        self._closed = 0
        """Number of closed blocks, the index of the open one."""
        self._open: str | int | None = None
        """The open block: `thinking`, `text`, the index of a tool call, or None."""

    def whole(self, parts: Sequence[ModelResponsePart]) -> dict[str, Any]:
        """See `AnswerWriter`; it has at least one block."""
        part = parts[0]
        blocks: list[dict[str, Any]] = []
        if part.reasoning:
            blocks.append({"type": "thinking", "thinking": part.reasoning, "signature": part.interaction})
        if part.text or not part.tool_calls:
            blocks.append({"type": "text", "text": part.text})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
            for call in part.tool_calls
        ]
        return {**self._head(part), "content": blocks, **_stop(part), "usage": _usage(part), **self._edits}

    def part(self, part: ModelResponsePart) -> bytes:
        """See `AnswerWriter`."""
        return b"".join(self._events(part))

    def _events(self, part: ModelResponsePart) -> Iterator[bytes]:
        if part.error:
            yield named_event("error", **_error(part.error, part.error_status, part.error_field))
            return
        if not self._interaction:
            self._interaction = part.interaction
            usage = _usage(part) | {"output_tokens": 0}
            start = {**self._head(part), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
            yield named_event("message_start", message=start)
        if part.reasoning:
            block: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
            yield from self._delta("thinking", block, "thinking_delta", "thinking", part.reasoning)
        if part.text or (part.finish_reason and not part.tool_calls and self._open in (None, "thinking")):
            block = {"type": "text", "text": ""}
            yield from self._delta("text", block, "text_delta", "text", part.text)
        for call in part.tool_calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield from self._delta(call.index, block, "input_json_delta", "partial_json", call.arguments)
        if part.finish_reason:
            yield from self._close()
            yield named_event("message_delta", delta=_stop(part), usage=_usage(part), **self._edits)
            yield named_event("message_stop")

    def _delta(self, key: str | int, block: dict[str, Any], kind: str, field: str, delta: str) -> Iterator[bytes]:
        """Open the block if it is not open yet, and append the delta to it unless it is empty."""
        if key != self._open:
            yield from self._close()
            self._open = key
            yield named_event("content_block_start", index=self._closed, content_block=block)
        if delta:
            yield named_event("content_block_delta", index=self._closed, delta={"type": kind, field: delta})

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            signature = {"type": "signature_delta", "signature": self._interaction}
            yield named_event("content_block_delta", index=self._closed, delta=signature)
        yield named_event("content_block_stop", index=self._closed)
        self._open = None
        self._closed += 1

    def _head(self, part: ModelResponsePart) -> dict[str, Any]:
        return {"id": part.interaction, "type": "message", "role": "assistant", "model": self._model}


class TokenCount(MessageAnswer):
    """The answer to a token count request, never streamed."""

    def whole(self, parts: Sequence[ModelResponsePart]) -> dict[str, Any]:
        """See `AnswerWriter`."""
        return {"input_tokens": parts[0].prompt_tokens}


# This protocol has no error codes
def error_body(message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:  # noqa: ARG001
    """Return the body of an error; `thread_not_found` makes clients send the whole conversation again."""
    return {"type": "error", **_error(message, status, field)}


def _error(message: str, status: int, field: str) -> dict[str, Any]:
    kind = ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    error: dict[str, Any] = {"type": kind, "message": message}
    if field:
        error["field"] = WIRE_NAMES.get(field, field)
    if field == "continues":
        error["details"] = {"error_code": "thread_not_found"}
    return {"error": error}


def _stop(part: ModelResponsePart) -> dict[str, Any]:
    reason = STOP_REASONS.get(part.finish_reason) or ("stop_sequence" if part.stop_sequence else "end_turn")
    return {"stop_reason": reason, "stop_sequence": part.stop_sequence or None}


def _usage(part: ModelResponsePart) -> dict[str, Any]:
    """Token counts; in this dialect `input_tokens` excludes cached tokens."""
    return {
        "input_tokens": part.prompt_tokens - part.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": part.cached_tokens,
        "output_tokens": part.completion_tokens,
        "output_tokens_details": {"thinking_tokens": part.reasoning_tokens},
    }


def _input(arguments: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {UNPARSED: arguments}
