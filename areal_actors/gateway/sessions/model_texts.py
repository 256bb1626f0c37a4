"""Finds texts of the model in a document or a prompt: the evidence for what the model itself brought about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from areal_actors.gateway.conversations.message_equality import REASONING
from areal_actors.gateway.conversations.turns import ConversationTurn
from areal_actors.messages import ModelRequest

SHORTEST = 12
"""Minimum number of characters of an answer that is recognised inside another text: shorter ones occur by chance."""


def has_written(turns: Sequence[ConversationTurn], document: str | None) -> bool:
    """True if the model wrote this document, in an answer, its reasoning or the arguments of a tool call.

    An empty document stands for the last one.
    """
    if document is None:
        return False
    text = document.strip()
    if not text:
        return bool(turns) and any(not written.strip() for written in _texts(turns[-1].answer, reasoning=False))
    return any(
        text in part
        for turn in turns
        for written in _texts(turn.answer)
        for part in (written, *_strings_of_json(written))
    )


def continues_model(turns: Sequence[ConversationTurn], request: ModelRequest) -> bool:
    """True if a prompt holds what the model wrote: an answer as such, or its text in another message."""
    if not turns:
        return False
    if (
        request.continues
        or request.has_references
        or any(message.get("role") == "assistant" for message in request.messages)
    ):
        return True
    if request.prompt_ids is not None:
        return any(turn.interaction.completion.token_ids in request.prompt_ids for turn in turns)
    prompt = "\n".join([request.prompt or "", *_strings(request.messages)])
    answers = (written.strip() for turn in turns for written in _texts(turn.answer, reasoning=False))
    return any(len(written) >= SHORTEST and written in prompt for written in answers)


def _texts(answer: dict[str, Any], *, reasoning: bool = True) -> Iterator[str]:
    """Texts of an answer: its content, its reasoning, and the arguments of its tool calls.

    The empty content of a tool call is none.
    """
    calls = answer.get("tool_calls") or ()
    content = answer.get("content")
    if isinstance(content, str) and (content or not calls):
        yield content
    elif content is None and not calls:
        yield ""
    for call in calls:
        arguments = call["function"].get("arguments")
        if isinstance(arguments, str):
            yield arguments
    for field in REASONING if reasoning else ():
        if isinstance(text := answer.get(field), str):
            yield text


def _strings_of_json(text: str) -> Iterator[str]:
    """Strings in a text that is JSON: an argument may hold JSON itself."""
    try:
        yield from _strings(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        return


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _strings(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _strings(entry)
