"""Message equality: compares messages by their meaning to the model, across the formats of clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

MessageDict = Mapping[str, Any]

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields of reasoning in an earlier answer, which clients may drop."""

_ENCODER = msgspec.json.Encoder()
_SORTED = msgspec.json.Encoder(order="deterministic")


def encode(value: Any) -> bytes:
    """JSON of a value exactly as sent."""
    return _ENCODER.encode(value)


def digest(value: Any) -> bytes:
    """16-byte hash of a JSON value exactly as sent."""
    return xxhash.xxh3_128_digest(encode(value))


def value_digests(before: bytes, messages: Iterable[MessageDict]) -> list[bytes]:
    """16-byte hash by value after each message, of all messages up to it."""
    digests = []
    for message in messages:
        plain = message if _is_plain_text(message) else by_value(message)
        before = xxhash.xxh3_128_digest(before + _SORTED.encode(plain))
        digests.append(before)
    return digests


def _is_plain_text(message: MessageDict) -> bool:
    """True for a message of a role and a text, which is its own value."""
    return len(message) == 2 and type(text := message.get("content")) is str and bool(text) and "role" in message


def by_value(message: MessageDict) -> Any:
    """Normalise a message: null, absent and empty are equal; text parts are joined; JSON text is parsed."""
    return _plain({key: value for key, value in message.items() if key not in REASONING})


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        plain = {key: _json(entry) if key == "arguments" else _plain(entry) for key, entry in value.items()}
        return {key: entry for key, entry in plain.items() if entry is not None and entry not in ("", [], {})}
    if isinstance(value, (list, tuple)):
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


def same_answer(answer: MessageDict, sent: MessageDict) -> bool:
    """True if a message that a client sends back is the model's answer.

    Reasoning and ids of tool calls are ignored; but a call with the same id may come back with more arguments than the
    model wrote, because clients fill in defaults.
    """
    if sent.get("role") != "assistant" or sent.get("name") or _text(answer) != _text(sent):
        return False
    ours, sent_calls = answer.get("tool_calls") or (), sent.get("tool_calls") or ()
    return len(ours) == len(sent_calls) and all(
        _same_call(answered_call, sent_call) for answered_call, sent_call in zip(ours, sent_calls, strict=True)
    )


def is_answer_prefix(answer: MessageDict, sent: MessageDict) -> bool:
    """True if a message that a client sends back is a prefix of an answer whose stream it closed."""
    if sent.get("role") != "assistant" or sent.get("tool_calls"):
        return False
    return bool(_text(sent)) and _text(answer).startswith(_text(sent))


def _text(message: MessageDict) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content.strip()
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping)).strip()


def _same_call(answered: MessageDict, sent_call: MessageDict) -> bool:
    ours, sent_function = answered.get("function") or answered, sent_call.get("function") or sent_call
    if ours.get("name") != sent_function.get("name"):
        return False
    written, sent = ours.get("arguments") or "{}", sent_function.get("arguments") or "{}"
    if written == sent or _same_value(_json(written), _json(sent)):
        return True
    return (
        bool(answered.get("id"))
        and answered.get("id") == sent_call.get("id")
        and _same_value(_json(written), _json(sent), more=True)
    )


def _same_value(answered: Any, sent_value: Any, *, more: bool = False) -> bool:
    """True if two JSON values are equal: 2.0 equals 2, as JavaScript writes it, but true does not equal 1.

    With `more`, objects of `other` may have further entries, at any depth.
    """
    if isinstance(answered, dict) and isinstance(sent_value, dict):
        has_keys = answered.keys() <= sent_value.keys() if more else answered.keys() == sent_value.keys()
        return has_keys and all(_same_value(value, sent_value[key], more=more) for key, value in answered.items())
    if isinstance(answered, list) and isinstance(sent_value, list):
        return len(answered) == len(sent_value) and all(
            _same_value(value, sent, more=more) for value, sent in zip(answered, sent_value, strict=True)
        )
    return bool(answered == sent_value) and isinstance(answered, bool) == isinstance(sent_value, bool)


def first_difference(messages: Sequence[MessageDict], sent: Sequence[MessageDict]) -> int:
    """Index of the first message that differs by value; the shorter length if none does."""
    pairs = zip(messages, sent, strict=False)
    return next(
        (
            index
            for index, (message, sent_message) in enumerate(pairs)
            if message != sent_message and by_value(message) != by_value(sent_message)
        ),
        min(len(messages), len(sent)),
    )
