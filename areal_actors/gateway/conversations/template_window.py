"""Tests which conversations a chat template renders the same text after as after a placeholder history.

A placeholder has the features of the conversation that it stands for: a system message, tools, tool calls, reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from areal_actors.core.errors import ArealError
from areal_actors.gateway.conversations.message_equality import MessageDict
from areal_actors.tokenization.chat_template import ChatTemplate, ToolDialect
from areal_actors.tokenization.tokenizer import ChatTokenizer

Messages = list[dict[str, Any]]
Render = Callable[[Messages, Messages], str | None]
"""Renders messages and tools; None where the template rejects the messages."""

SENTINEL = "answer-7c1e"
"""Text that no template contains."""
PLACEHOLDER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}
OTHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "g", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def features_of(messages: Sequence[MessageDict]) -> frozenset[str]:
    """Features that a placeholder for these messages needs, besides user messages."""
    features = {"system"} if messages and messages[0].get("role") == "system" else set()
    for message in messages:
        if message.get("role") == "assistant":
            features |= {name for name in ("tool_calls", "reasoning_content") if message.get(name)}
            if "</think>" in (message.get("content") or ""):
                features.add("reasoning_content")  # templates parse it as reasoning
    return frozenset(features)


def window(features: frozenset[str]) -> tuple[Messages, Messages]:
    """Messages and tools of a placeholder history with these features."""
    messages = [_message("system", "s")] if "system" in features else []
    messages.append(_message("user", "u"))
    if features & {"tool_calls", "reasoning_content"}:
        reasoning = {"reasoning_content": "r"} if "reasoning_content" in features else {}
        calls = {"tool_calls": [_call(0, "f", "{}")]} if "tool_calls" in features else {}
        messages.append(_message("assistant", "c", **reasoning, **calls))
        messages.append(_result(0, "f", "t") if calls else _message("user", "u"))
    return messages, [PLACEHOLDER_TOOL] if "tools" in features else []


def local_features(template: ChatTemplate) -> Mapping[frozenset[str], bool]:
    """By features of test conversations: true if the template renders all of them as with a placeholder history.

    Tested once for equal templates: of several policies, or of a gateway that starts again.
    """
    return _test_features(template.source, tuple(template.special_tokens.items()), template.dialect)


@lru_cache(maxsize=64)
def _test_features(
    source: str, special_tokens: tuple[tuple[str, str], ...], dialect: ToolDialect
) -> Mapping[frozenset[str], bool]:
    template = ChatTemplate(source, dict(special_tokens))
    template.dialect = dialect
    rendered: dict[bytes, str | None] = {}

    def render(messages: Messages, tools: Messages) -> str | None:
        """Many test conversations begin alike, or have the same placeholder."""
        if (key := msgspec.json.encode([messages, tools])) not in rendered:
            rendered[key] = _render(template, messages, tools)
        return rendered[key]

    local: dict[frozenset[str], bool] = {}
    for before, answer, new, tools in test_conversations():
        used = {"tools"} if tools else set()
        kind = features_of([*before, answer]) | used
        placeholder = window(features_of(before) | used)
        same = _text_after_sentinel(render, before, tools, answer, new) == _text_after_sentinel(
            render, *placeholder, answer, new
        )
        local[kind] = local.get(kind, True) and same
    return local


def _text_after_sentinel(
    render: Render, before: Messages, tools: Messages, answer: dict[str, Any], new: Messages
) -> str | None:
    """Rendered text after the sentinel in the answer; None where the template rejects or rewrites the messages."""
    opened, whole = render(before, tools), render([*before, answer, *new], tools)
    if opened is None or whole is None or not whole.startswith(opened) or SENTINEL not in whole:
        return None
    return whole.rpartition(SENTINEL)[2]


def renders_names(chat: ChatTokenizer) -> bool:
    """True if the template shows the name in an assistant message, with text or with a call."""
    question, text = _message("user", "u"), _message("assistant", "c")
    calling, result = _message("assistant", "", tool_calls=[_call(0, "f", "{}")]), _result(0, "f", "t")
    return any(
        _render(chat, [question, answer | {"name": "n"}, after], tools)
        != _render(chat, [question, answer, after], tools)
        for answer, after, tools in ((text, question, []), (calling, result, [PLACEHOLDER_TOOL]))
    )


def _render(chat: ChatTokenizer | ChatTemplate, messages: Messages, tools: Messages) -> str | None:
    """Returns None if the template rejects the messages."""
    try:
        return chat.render(messages, tools)
    except ArealError:
        return None


def test_conversations() -> Iterator[tuple[Messages, dict[str, Any], Messages, Messages]]:
    """Test conversations of all shapes: before, answer, new messages, tools.

    Each call has an id of its own: some templates number them.
    """
    question, result, last = _message("user", "and"), _result(8, "f", "8"), _result(9, "g", "9")
    for system in ([], [_message("system", "Be brief.")]):
        for tools in ([], [PLACEHOLDER_TOOL, OTHER_TOOL]):
            for reasoning in ({}, {"reasoning_content": "because"}):
                plain = _message("assistant", SENTINEL, **reasoning)
                marked = _call(9, "g", f'{{"x": "{SENTINEL}"}}')
                calling = _message("assistant", "", tool_calls=[marked], **reasoning)
                both = _message("assistant", "", tool_calls=[_call(8, "f", '{"x": 1}'), marked], **reasoning)
                for pairs in (0, 1, 2, 5):
                    for steps in (0, 1, 2, 3) if tools else (0,):
                        before = [*system]
                        for number in range(pairs):
                            before += [_message("user", f"q{number}"), _message("assistant", f"a{number}")]
                        before.append(_message("user", "now"))
                        for number in range(steps):
                            step = _message("assistant", "", tool_calls=[_call(number, "f", '{"x": 1}')], **reasoning)
                            before += [step, _result(number, "f", str(number))]
                        later = [*before, _message("assistant", "done", **reasoning), _message("user", "more")]
                        yield before, plain, [question], tools
                        yield later, plain, [question], tools
                        if tools:
                            yield before, calling, [last], tools
                            yield later, calling, [last], tools
                            yield before, both, [result, last], tools
                            yield before, calling, [last, question], tools


def _message(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def _call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": _id(number), "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(number: int, name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _id(number), "name": name, "content": content}


def _id(number: int) -> str:
    """Id of a call; some templates reject any that is not nine letters and digits."""
    return f"callx{number:04d}"
