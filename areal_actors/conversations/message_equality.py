"""When two messages are the same to the model, although two clients, or one client twice, write them differently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

Message = Mapping[str, Any]

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Of an earlier answer; clients keep it or drop it as they please."""

_ENCODER = msgspec.json.Encoder()
_SORTED = msgspec.json.Encoder(order="deterministic")


def digest(value: Any) -> bytes:
    """16 bytes that stand for a JSON value exactly as it was sent."""
    return xxhash.xxh3_128_digest(_ENCODER.encode(value))


def value_digests(before: bytes, messages: Iterable[Message]) -> list[bytes]:
    """After each message, 16 bytes that stand for it and everything before it, by value."""
    digests = []
    for message in messages:
        before = xxhash.xxh3_128_digest(before + _SORTED.encode(by_value(message)))
        digests.append(before)
    return digests


def by_value(message: Message) -> Any:
    """A message as the model sees it: null, absent and empty are one; text parts are a string; JSON text is its value."""
    return _plain({key: value for key, value in message.items() if key not in REASONING})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        plain = {key: _json(entry) if key == "arguments" else _plain(entry) for key, entry in value.items()}
        return {key: entry for key, entry in plain.items() if entry is not None and entry not in ("", [], {})}
    if isinstance(value, list | tuple):
        parts = [_plain(entry) for entry in value]
        if parts and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
            return "".join(part.get("text", "") for part in parts)
        return parts
    return value


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def same_answer(said: Message, sent: Message) -> bool:
    """Whether a message that a client sends back is what the model said.

    Reasoning does not matter. Nor do ids of tool calls; but under the id that it was given a call may come back with more
    arguments than the model wrote, since clients fill defaults in.
    """
    if sent.get("role") != "assistant" or sent.get("name") or _text(said) != _text(sent):
        return False
    ours, theirs = said.get("tool_calls") or (), sent.get("tool_calls") or ()
    return len(ours) == len(theirs) and all(_same_call(one, other) for one, other in zip(ours, theirs, strict=True))


def begins_answer(answer: Message, sent: Message) -> bool:
    """Whether a message that a client sends back is the beginning of an answer whose stream it left."""
    if sent.get("role") != "assistant" or sent.get("tool_calls"):
        return False
    return bool(_text(sent)) and _text(answer).startswith(_text(sent))


def _text(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content.strip()
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping)).strip()


def _same_call(one: Message, other: Message) -> bool:
    ours, theirs = one.get("function") or one, other.get("function") or other
    if ours.get("name") != theirs.get("name"):
        return False
    said, sent = ours.get("arguments") or "{}", theirs.get("arguments") or "{}"
    if said == sent or _same_value(_json(said), _json(sent)):
        return True
    return bool(one.get("id")) and one.get("id") == other.get("id") and _is_part(_json(said), _json(sent))


def _is_part(one: Any, other: Any) -> bool:
    """Whether a JSON object has all entries of another, and perhaps more of them, at any depth."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(key in other and _is_part(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_part, one, other))
    return _same_value(one, other)


def _same_value(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: 2.0 is 2, as JavaScript writes it, but true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_value(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_value, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def differs_at(said: Sequence[Message], sent: Sequence[Message]) -> int:
    """Index of the first message that differs by value; the shorter length if none does."""
    pairs = zip(said, sent, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if by_value(one) != by_value(other)), min(len(said), len(sent)))
