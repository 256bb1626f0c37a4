"""The answer of Anthropic's dialect: content blocks, whole or as a stream of events."""

from __future__ import annotations

from typing import Any

import msgspec

from areal_actors.gateway.protocols.base import named_event
from areal_actors.messages import ModelResponsePart, ToolCallPart

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
WIRE_NAMES = {"continues": "thread.previous_message_id", "stop": "stop_sequences", "response_format": "output_config.format"}
"""Fields of `ModelRequest` that have another name in this dialect."""


def build_message(model: str, part: ModelResponsePart) -> dict[str, Any]:
    """Return the whole answer; it has at least one block."""
    blocks: list[dict[str, Any]] = []
    if part.reasoning:
        blocks.append({"type": "thinking", "thinking": part.reasoning, "signature": part.interaction})
    if part.text or not part.tool_calls:
        blocks.append({"type": "text", "text": part.text, "citations": None})
    blocks += [{"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)} for call in part.tool_calls]
    return {**_head(model, part), "content": blocks, **_stop(part), "usage": _usage(part)}


class MessageStream:
    """Events of one answer; one content block is open at a time."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._begun = False
        self._blocks = 0
        self._open: str | int | None = None
        """The open block: `thinking`, `text`, the index of a tool call, or None."""
        self._interaction = ""

    def part(self, part: ModelResponsePart) -> bytes:
        """Return the events for a part of the answer."""
        if part.error:
            return named_event("error", **_error(part.error, part.error_status, part.error_field))
        events = [] if self._begun else [self._start(part)]
        if part.reasoning:
            events += self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._delta({"type": "thinking_delta", "thinking": part.reasoning}))
        if part.text or (part.finish_reason and not part.tool_calls and self._open in (None, "thinking")):
            events += self._block("text", {"type": "text", "text": "", "citations": None})
            if part.text:
                events.append(self._delta({"type": "text_delta", "text": part.text}))
        for call in part.tool_calls:
            events += self._call(call)
        if part.finish_reason:
            events += [*self._close(), named_event("message_delta", delta=_stop(part), usage=_usage(part)), named_event("message_stop")]
        return b"".join(events)

    def _start(self, part: ModelResponsePart) -> bytes:
        self._begun, self._interaction = True, part.interaction
        unfinished: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(part) | {"output_tokens": 0},
        }
        return named_event("message_start", message={**_head(self._model, part), **unfinished})

    def _call(self, call: ToolCallPart) -> list[bytes]:
        events = self._block(call.index, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        if call.arguments:
            events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return events

    def _block(self, key: str | int, block: dict[str, Any]) -> list[bytes]:
        if key == self._open:
            return []
        events = self._close()
        self._open = key
        self._blocks += 1
        return [*events, named_event("content_block_start", index=self._blocks - 1, content_block=block)]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        signature = [self._delta({"type": "signature_delta", "signature": self._interaction})] if self._open == "thinking" else []
        self._open = None
        return [*signature, named_event("content_block_stop", index=self._blocks - 1)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event("content_block_delta", index=self._blocks - 1, delta=delta)


def error_body(message: str, status: int, field: str = "", code: str = "") -> dict[str, Any]:  # noqa: ARG001 - this protocol has no error codes
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


def _head(model: str, part: ModelResponsePart) -> dict[str, Any]:
    return {"id": part.interaction, "type": "message", "role": "assistant", "model": model}


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
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {UNPARSED: arguments}
