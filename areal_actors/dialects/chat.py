"""OpenAI chat completions: wire JSON to values and back. No server in here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_actors.errors import RequestError

SAMPLING = ("temperature", "top_p", "top_k", "seed")
ACCEPTED = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "stop",
    "n",
    "user",
    "metadata",
    "max_tokens",
    "max_completion_tokens",
    *SAMPLING,
}
"""Honoured, or (model, user, metadata) without meaning here; everything else is refused by name unless it asks for nothing."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "store": (False, True),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
}
"""Values with which a field asks for what happens anyway."""
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1
ROLES = ("system", "developer", "user", "assistant")


def parse(body: Any) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """The messages and the stated sampling parameters of a request.

    Raises:
        RequestError: a field is wrong or cannot be honoured; it names the field.
    """
    if not isinstance(body, Mapping):
        raise RequestError("the request body must be a JSON object")
    for field, value in body.items():
        if value is None or value in NEUTRAL.get(field, ()):
            continue
        if field == "n" or field not in ACCEPTED:
            raise RequestError(f"'{field}' cannot be honoured by this gateway; leave it out", field)
    if not isinstance(body.get("stream") or False, bool):
        raise RequestError(f"'stream' is {body['stream']!r:.60}; expected true or false", "stream")
    if not isinstance(body.get("stream_options") or {}, Mapping):
        raise RequestError("'stream_options' must be an object", "stream_options")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("'messages' must be a non-empty list", "messages")
    return tuple(_message(message, index) for index, message in enumerate(messages)), _options(body)


def _message(message: Any, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"'{where}' must be an object with role and content", where)
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise RequestError(f"'{where}.role' is {role!r}; expected one of {', '.join(ROLES)}", f"{where}.role")
    if message.get("tool_calls"):
        raise RequestError(f"'{where}.tool_calls' cannot be honoured by this gateway; leave it out", f"{where}.tool_calls")
    return {"role": "system" if role == "developer" else role, "content": _text(content, where)}


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        for number, part in enumerate(content):
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise RequestError(f"'{where}.content[{number}]' must be a text part: this model reads text only", f"{where}.content")
        return "".join(part["text"] for part in content)
    raise RequestError(f"'{where}.content' must be a string or a list of text parts", f"{where}.content")


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: body[name] for name in SAMPLING if body.get(name) is not None}
    limits = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    if len(limits) > 1:
        raise RequestError("give max_tokens or max_completion_tokens, not both", "max_completion_tokens")
    if limits:
        options["max_tokens"] = body[limits[0]]
    for name, value in options.items():
        if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
            raise RequestError(f"'{name}' has {len(str(abs(value)))} digits; expected an integer of at most 64 bits", name)
    if (stop := body.get("stop")) is not None:
        options["stop"] = stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
            raise RequestError("'stop' must be a non-empty string or a list of such strings", "stop")
    return options


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a streamed answer ends with a usage chunk."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def completion(identifier: str, model: str, created: int, text: str, finish_reason: str, usage: dict[str, int]) -> dict[str, Any]:
    """A whole answer."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
    return {"id": identifier, "object": "chat.completion", "created": created, "model": model, "choices": [choice], "usage": usage}


def chunk(identifier: str, model: str, created: int, delta: dict[str, Any], finish_reason: str = "") -> dict[str, Any]:
    """A part of a streamed answer."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason or None, "logprobs": None}
    return {"id": identifier, "object": "chat.completion.chunk", "created": created, "model": model, "choices": [choice]}


def usage_chunk(identifier: str, model: str, created: int, usage: dict[str, int]) -> dict[str, Any]:
    """The last part of a streamed answer that was asked for usage."""
    return {"id": identifier, "object": "chat.completion.chunk", "created": created, "model": model, "choices": [], "usage": usage}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Token counts of a call."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def error(message: str, status: int, field: str = "") -> dict[str, Any]:
    """An error body in OpenAI's shape."""
    kind = {401: "authentication_error", 404: "not_found_error", 410: "session_over"}.get(status)
    kind = kind or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field or None, "code": None}}
