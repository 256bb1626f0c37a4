"""Renders known tool calls through a chat template.

The text that a model would have to generate for them is cut out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_actors.core.errors import RequestError
from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.base import ToolDefinition
from areal_actors.tokenization.tool_parsers.frames import frame_of
from areal_actors.tokenization.tool_parsers.grammar import MARK

Message = dict[str, Any]

USER: Message = {"role": "user", "content": "user-5d20"}
NEXT: Message = {"role": "user", "content": "next-81fe"}
TEXT, RESULT = "text-93ab", "result-2f17"
"""Texts that no template contains."""


class ProbeCall(NamedTuple):
    """A known call."""

    name: str
    arguments: Mapping[str, Any]
    id: str


def probe_tools(calls: Sequence[ProbeCall]) -> list[ToolDefinition]:
    """Return declarations of the called tools."""
    kinds = {
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
        list: "array",
        dict: "object",
        type(None): "null",
    }
    declared: dict[str, dict[str, Any]] = {}
    for call in calls:
        properties: dict[str, Any] = {
            key: {"type": kinds[type(value)], "description": "One value."} for key, value in call.arguments.items()
        }
        for schema in properties.values():
            if schema["type"] == "object":
                schema[
                    "additionalProperties"
                ] = {}  # a few templates render no tool with an object of which nothing is known
        known_properties = declared.get(call.name, {})
        declared[call.name] = {**known_properties, **properties}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "A tool.",
                "parameters": {"type": "object", "properties": properties, "required": list(properties)},
            },
        }
        for name, properties in declared.items()
    ]


class RenderedCalls(NamedTuple):
    """An answer with calls as a template renders it."""

    prompt: str
    """Text before it: the prompt, or the part of it that the conversation shares."""
    text: str
    """Text that a model would have to generate."""


class Probe:
    """Renders answers with one template."""

    def __init__(self, template: ChatTemplate, stops: Sequence[str], tools: Sequence[ToolDefinition]) -> None:
        """`stops` are the texts of the model's stop tokens."""
        self.template, self.tools = template, tools
        self.prompt = template.render([USER], tools)
        self.ends = (*stops, *self._ends_of_turn())

    def _ends_of_turn(self) -> list[str]:
        """Delimiters that the template writes right after an answer."""
        try:
            plain = self.template.render(
                [USER, {"role": "assistant", "content": TEXT}, NEXT], self.tools, add_generation_prompt=False
            )
        except RequestError:
            return []
        tail = plain.rpartition(TEXT)[2].partition(NEXT["content"])[0] if TEXT in plain else ""
        frame = frame_of(self.template.source)
        tail = frame.remove(tail) if frame else tail
        ends = [mark[0] for mark in MARK.finditer(tail)][: 1 if frame else 2]
        return ends + [word for word in tail.split()[:1] if len(word) > 2]

    def render(self, calls: Sequence[ProbeCall], content: str = "") -> RenderedCalls:
        """Render an answer with these calls; its text is empty if the template renders none of them.

        Raises:
            RequestError: the template rejects the messages.
        """
        message: Message = {
            "role": "assistant",
            "content": content,
            "tool_calls": [_message_call(call) for call in calls],
        }
        results = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": RESULT} for call in calls]
        rendered, error = [], None
        for after in (results, []):
            try:
                whole = self.template.render([USER, message, *after], self.tools, add_generation_prompt=False)
            except RequestError as raised:
                error = raised
                continue
            start = self._start(whole)
            text = whole[start:].partition(RESULT)[0]
            if any(call.name in text or call.id in text for call in calls):
                rendered.append(RenderedCalls(whole[:start], text))
        if error is not None and not rendered:
            raise error
        if not rendered:
            return RenderedCalls(self.prompt, "")
        return rendered[0]._replace(
            text=self._cut([rendering.text for rendering in rendered if rendering.prompt == rendered[0].prompt], calls)
        )

    def _start(self, whole: str) -> int:
        """Return the position in a rendered conversation where the answer begins.

        That is where the prompt ends, or where they differ.
        """
        user = USER["content"]
        asked, sent = self.prompt.find(user), whole.find(user)
        if asked < 0 or sent < 0:
            asked = sent = 0
        shared = common_prefix(self.prompt[asked:], whole[sent:])
        if len(shared) < len(self.prompt) - asked:
            shared = without_open_mark(shared)
        return sent + len(shared)

    def _cut(self, texts: Sequence[str], calls: Sequence[ProbeCall]) -> str:
        """Return the answer without what the template writes after it: the end of the turn, and the next message."""
        text = next((text_part for text_part in texts[1:] if texts[0].startswith(text_part.rstrip())), texts[0])
        start = _last_place(text, calls)
        places = [place for end in self.ends if end and (place := text.find(end, start)) >= 0]
        return text[: min(places)] if places else text


def common_prefix(first: str, second: str) -> str:
    """Return the longest text that both begin with."""
    differs = (place for place, (left, right) in enumerate(zip(first, second, strict=False)) if left != right)
    return first[: next(differs, min(len(first), len(second)))]


def without_open_mark(text: str) -> str:
    """Return a text without the beginning of a delimiter at its end."""
    return text[: text.rfind("<")] if text.rfind("<") > text.rfind(">") else text


def _last_place(text: str, calls: Sequence[ProbeCall]) -> int:
    """Return the position behind the names, ids and plain values of these calls, where they first occur."""
    values = [
        str(value)
        for call in calls
        for value in call.arguments.values()
        if isinstance(value, str) or type(value) is int
    ]
    lines = [line for value in values for line in value.splitlines()[-1:]]
    named = [call.name for call in calls if call.name in text]
    # Where a call has its name, its id may stand behind the end, in the result.
    parts = [*(named or [call.id for call in calls]), *lines]
    return max([place + len(part) for part in parts if (place := text.find(part)) >= 0], default=0)


def _message_call(call: ProbeCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
    }
