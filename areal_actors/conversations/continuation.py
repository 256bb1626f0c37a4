"""What a chat template adds to a conversation after the model has answered: the end of its turn and the new messages.

Rendering a whole conversation to learn its last lines costs more with every turn. Most templates write those lines in the
same way whatever came long before, so a short stand-in for the past gives the same text. Whether a template is of that kind
is tried when it is loaded; and from time to time a conversation is rendered whole all the same, to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from areal_actors.conversations.message_equality import Message, same_answer
from areal_actors.errors import ArealError, RequestError
from areal_actors.tool_parsers.base import AnswerFormat

MARK = "answer-7c1e"
"""A word that no template writes of its own."""
STAND_IN_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
REMEMBERED = 256
"""Openings of windows kept."""


class ChatText(Protocol):
    """A model's tokenizer, chat template and way of writing."""

    stop_ids: tuple[int, ...]
    """Ids that end a completion."""
    format: AnswerFormat

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, its special tokens recognised and none added."""
        ...

    def least_tokens(self, text: str, most: int) -> int:
        """A number of tokens above `most` that a text certainly has; 0 if it may have fewer."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids."""
        ...

    def is_lossless(self, text: str) -> bool:
        """Whether decoding the text's ids gives the text again."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """Messages as the chat template writes them.

        Raises:
            RequestError: the template refuses them.
        """
        ...


class Conversation(NamedTuple):
    """A conversation up to an answer of the model."""

    before: Sequence[Message]
    """What the model answered."""
    answer: Message
    sampled: str
    """The answer's text as it was sampled, special tokens included."""
    tools: Sequence[Message]
    kwargs: Mapping[str, Any]
    """The chat template's own settings."""


class Continuations:
    """Renders the ends of conversations in one model's template."""

    def __init__(self, chat: ChatText) -> None:
        self.chat = chat
        self._openings: dict[tuple[frozenset[str], str], str] = {}
        self._local: dict[frozenset[str], bool] = {}
        """Whether all conversations with these features that were tried end as their stand-ins do."""
        for before, answer, new, tools in _cases():
            kind = features_of([*before, answer]) | ({"tools"} if tools else set())
            self._local[kind] = self._local.get(kind, True) and _same_ends(chat, before, answer, new, tools)

    def is_local(self, features: frozenset[str]) -> bool:
        """Whether the template's last lines do not depend on what came long before, in conversations with these features."""
        return self._local.get(features, False)

    def after(self, opened: str, conversation: Conversation, new: Sequence[Message]) -> str | None:
        """The text between what the model sampled and its next answer; None if the template rewrites the model's answer.

        Args:
            opened: the prompt of that answer as the template writes it now.
            conversation: what was said up to the answer.
            new: what was said since.
        """
        before, answer, sampled, tools, kwargs = conversation
        whole = self.chat.render([*before, answer, *new], tools, **kwargs)
        if whole.startswith(opened) and whole.startswith(sampled, len(opened)):
            return whole[len(opened) + len(sampled) :]
        # The model wrote its answer in another form than the template does, a tool call's JSON for one: where both mean the
        # same, the model's own tokens stay and only what follows them is taken.
        answered = self.chat.render([*before, answer], tools, add_generation_prompt=False, **kwargs)
        marked = self.chat.render([*before, {"role": "assistant", "content": MARK}], tools, add_generation_prompt=False, **kwargs)
        closing = marked.rpartition(MARK)[2]
        if not (answered.startswith(opened) and answered.endswith(closing) and whole.startswith(answered)):
            return None
        written = answered[len(opened) : len(answered) - len(closing)]
        if not self.means(written, answer, tools, in_reasoning=opens_reasoning(opened)):
            return None
        return (self.without_stop(closing) if self.is_stopped(sampled) else closing) + whole[len(answered) :]

    def after_window(
        self, features: frozenset[str], answer: Message, sampled: str, new: Sequence[Message], kwargs: Mapping[str, Any]
    ) -> str | None:
        """The same, from a stand-in for a past with these features; None where only the whole conversation can tell."""
        before, tools = _window(features), [STAND_IN_TOOL] if "tools" in features else []
        key = (features, repr(kwargs))
        try:
            if (opened := self._openings.get(key)) is None:
                if len(self._openings) >= REMEMBERED:
                    self._openings.clear()
                opened = self._openings[key] = self.chat.render(before, tools, **kwargs)
            tail = self.after(opened, Conversation(before, answer, sampled, tools, kwargs), new)
        except RequestError:
            return None
        if tail is None:
            self._openings.pop(key, None)  # it may be of yesterday: some templates write the date
        return tail

    def means(self, written: str, answer: Message, tools: Sequence[Message], *, in_reasoning: bool) -> bool:
        """Whether a text says what an answer says, reasoning included."""
        parsed = self.chat.format.parse(written, tools, in_reasoning=in_reasoning)
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in parsed.tool_calls]
        return (answer.get("reasoning_content") or "").strip() == parsed.reasoning.strip() and same_answer(
            answer, {"role": "assistant", "content": parsed.text, "tool_calls": calls}
        )

    def is_stopped(self, sampled: str) -> bool:
        """Whether a completion ends with a token that ends turns."""
        return any(sampled.endswith(stop) for stop in self.stops())

    def without_stop(self, closing: str) -> str:
        """The end of a turn as the template writes it, without a token that the model itself has written."""
        return next((closing[len(stop) :] for stop in self.stops() if closing.startswith(stop)), closing)

    def stops(self) -> Iterator[str]:
        """Texts of the tokens that end turns."""
        return (text for token in self.chat.stop_ids if (text := self.chat.decode([token], skip_special=False)))


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends with the mark after which the model's reasoning begins."""
    return prompt.rstrip().endswith("<think>")


def features_of(messages: Sequence[Message]) -> frozenset[str]:
    """What a stand-in for these messages must have, besides user messages."""
    found = {"system"} if messages and messages[0].get("role") == "system" else set()
    for message in messages:
        if message.get("role") == "assistant":
            found |= {name for name in ("tool_calls", "reasoning_content") if message.get(name)}
            if "</think>" in (message.get("content") or ""):
                found.add("reasoning_content")  # templates take it for that
    return frozenset(found)


def _window(features: frozenset[str]) -> list[dict[str, Any]]:
    window = [{"role": "system", "content": "s"}] if "system" in features else []
    window.append({"role": "user", "content": "u"})
    if features & {"tool_calls", "reasoning_content"}:
        earlier: dict[str, Any] = {"role": "assistant", "content": "c"}
        if "reasoning_content" in features:
            earlier["reasoning_content"] = "r"
        if "tool_calls" in features:
            earlier["tool_calls"] = [_call("f", "{}")]
        answer = {"role": "tool", "tool_call_id": "call-1", "name": "f", "content": "t"}
        window += [earlier, answer if "tool_calls" in features else {"role": "user", "content": "u"}]
    return window


def _call(name: str, arguments: str, identifier: str = "call-1") -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def _same_ends(chat: ChatText, before: list[dict[str, Any]], answer: dict[str, Any], new: list[dict[str, Any]], tools: list[Any]) -> bool:
    """Whether the stand-in for `before` gives the same end."""
    features = features_of(before) | ({"tools"} if tools else set())
    real = _end(chat, before, answer, new, tools)
    return real == _end(chat, _window(features), answer, new, [STAND_IN_TOOL] if tools else [])


def _end(chat: ChatText, before: list[dict[str, Any]], answer: dict[str, Any], new: list[dict[str, Any]], tools: list[Any]) -> str | None:
    """What is written after the answer's mark; None where the template refuses or rewrites what was said."""
    try:
        opened = chat.render(before, tools)
        whole = chat.render([*before, answer, *new], tools)
    except ArealError:
        return None
    return whole.rpartition(MARK)[2] if whole.startswith(opened) and MARK in whole else None


def _cases() -> Iterator[tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]], list[Any]]]:
    """Conversations of every shape: before, answer, new messages, tools."""
    other = {"type": "function", "function": {"name": "g", "description": "", "parameters": {"type": "object", "properties": {}}}}
    for system in ([], [{"role": "system", "content": "Be brief."}]):
        for tools in ([], [STAND_IN_TOOL, other]):
            for reasoning in ({}, {"reasoning_content": "because"}):
                for pairs in (0, 1, 2, 5):
                    for steps in (0, 1, 2, 3) if tools else (0,):
                        before = [*system, *_talk(pairs), {"role": "user", "content": "now"}, *_steps(steps, reasoning)]
                        later = [*before, {"role": "assistant", "content": "done", **reasoning}, {"role": "user", "content": "more"}]
                        plain = {"role": "assistant", "content": MARK, **reasoning}
                        calling = {"role": "assistant", "content": "", "tool_calls": [_call("g", f'{{"x": "{MARK}"}}')], **reasoning}
                        yield before, plain, [{"role": "user", "content": "and"}], tools
                        yield later, plain, [{"role": "user", "content": "and"}], tools
                        if tools:
                            result = {"role": "tool", "tool_call_id": "call-1", "name": "g", "content": "8"}
                            yield before, calling, [result], tools
                            yield later, calling, [result], tools
                            yield before, calling, [result, result], tools
                            yield before, calling, [result, {"role": "user", "content": "and"}], tools


def _talk(pairs: int) -> list[dict[str, Any]]:
    return [
        message
        for number in range(pairs)
        for message in ({"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": f"a{number}"})
    ]


def _steps(steps: int, reasoning: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        message
        for number in range(steps)
        for message in (
            {"role": "assistant", "content": "", "tool_calls": [_call("f", '{"x": 1}')], **reasoning},
            {"role": "tool", "tool_call_id": "call-1", "name": "f", "content": str(number)},
        )
    ]
