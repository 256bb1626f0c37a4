"""The items that OpenAI's Responses take as input, and the same as messages.

What the model did in one turn is several items there (reasoning, a message, function calls) and one assistant message here,
so that a conversation sent back compares by value with what the model said. A turn ends where somebody else speaks, before a
second text, and before reasoning.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal

from areal_actors.dialects.content import Content, content, image_part, text_part
from areal_actors.dialects.fields import Refused, Text, Unused, Wire, convert, refused
from areal_actors.dialects.tools import OpenCalls, tool_call
from areal_actors.errors import RequestError

SEAL = "areal:"
"""How reasoning begins that was handed out as `encrypted_content`: opaque to clients, not secret."""


class InputText(Wire, tag_field="type", tag="input_text"):
    """Text of a user, or of a tool."""

    text: str
    prompt_cache_breakpoint: Unused = None

    def part(self) -> dict[str, Any]:
        """In our words."""
        return text_part(self.text)


class OutputText(Wire, tag_field="type", tag="output_text"):
    """Text of the model, sent back."""

    text: str
    annotations: Unused = None
    logprobs: Unused = None
    parsed: Unused = None

    def part(self) -> dict[str, Any]:
        """In our words."""
        return text_part(self.text)


class InputImage(Wire, tag_field="type", tag="input_image"):
    """An image."""

    image_url: Text
    detail: Unused = None
    file_id: Refused = None
    prompt_cache_breakpoint: Unused = None

    def part(self) -> dict[str, Any]:
        """In our words."""
        return image_part(self.image_url)


InputPart = InputText | OutputText | InputImage


class MessageItem(Wire):
    """Somebody says something."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart] | None
    type: Literal["message"] = "message"
    id: Unused = None
    status: Unused = None
    phase: Unused = None


class FunctionCallItem(Wire):
    """The model called a function."""

    call_id: Text
    name: Text
    arguments: str
    type: Literal["function_call"]
    id: Unused = None
    status: Unused = None
    caller: Unused = None
    parsed_arguments: Unused = None
    async_: Refused = None
    namespace: Refused = None


class FunctionOutputItem(Wire):
    """What the function returned."""

    call_id: Text
    output: str | list[InputPart] | None
    type: Literal["function_call_output"]
    id: Unused = None
    name: Unused = None
    status: Unused = None
    caller: Unused = None
    namespace: Refused = None


class ReasoningText(Wire):
    """A piece of reasoning, or of its summary."""

    text: str
    type: Literal["reasoning_text", "summary_text"]


class ReasoningItem(Wire):
    """What the model thought before it spoke."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    id: Unused = None
    status: Unused = None


class Conversation:
    """Messages in the making."""

    def __init__(self, instructions: str | None, *, continued: bool) -> None:
        self.messages: list[dict[str, Any]] = []
        self._calls = OpenCalls(continued=continued)
        self._assistant: dict[str, Any] | None = None
        """The assistant's turn that later items may still belong to."""
        if instructions:
            self._say("system", instructions)

    def add(self, item: dict[str, Any], index: int) -> None:
        """Take the next item.

        Raises:
            RequestError: it is of a kind that cannot be had, or wrong; the error names it.
        """
        where = f"input[{index}]"
        match item.get("type") or "message":
            case "message":
                self._message(item, where)
            case "function_call":
                self._function_call(item, where)
            case "function_call_output":
                self._function_output(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case "item_reference":
                raise refused(f"{where}.type", "it is 'item_reference': send the item itself or 'previous_response_id'")
            case kind:
                raise refused(f"{where}.type", f"it is {kind!r:.60}: leave such items out")

    def _message(self, item: dict[str, Any], where: str) -> None:
        said = convert({name: value for name, value in item.items() if name != "type" or value}, MessageItem, where)
        text = _content(said.content)
        if said.role != "assistant":
            self._say("system" if said.role == "developer" else said.role, text)
            return
        turn = self._turn(fresh=self._assistant is not None and bool(self._assistant["content"]))
        if not isinstance(text, str):
            raise refused(f"{where}.content", "the assistant says text only, leave images out")
        turn["content"] = text

    def _function_call(self, item: dict[str, Any], where: str) -> None:
        call = convert(item, FunctionCallItem, where)
        self._calls.called(call.call_id, f"{where}.call_id")
        self._turn().setdefault("tool_calls", []).append(tool_call(call.call_id, call.name, call.arguments))

    def _function_output(self, item: dict[str, Any], where: str) -> None:
        output = convert(item, FunctionOutputItem, where)
        self._calls.answered(output.call_id, f"{where}.call_id")
        self._say("tool", _content(output.output), tool_call_id=output.call_id)

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        reasoning = _reasoning_text(convert(item, ReasoningItem, where), where)
        if reasoning:
            self._turn(fresh=True)["reasoning_content"] = reasoning

    def _say(self, role: str, text: Content, **more: str) -> None:
        self._assistant = None
        self.messages.append({"role": role, "content": text, **more})

    def _turn(self, *, fresh: bool = False) -> dict[str, Any]:
        if self._assistant is None or fresh:
            self._assistant = {"role": "assistant", "content": ""}
            self.messages.append(self._assistant)
        return self._assistant


def input_messages(items: str | Sequence[dict[str, Any]], instructions: str | None, *, continued: bool) -> tuple[dict[str, Any], ...]:
    """The input as messages; instructions become the first, a system message.

    Raises:
        RequestError: an item is wrong; it names the item and the field.
    """
    conversation = Conversation(instructions, continued=continued)
    for index, item in enumerate([{"role": "user", "content": items}] if isinstance(items, str) else items):
        conversation.add(item, index)
    if not conversation.messages:
        raise RequestError("'input' says nothing; give at least one message", "input")
    return tuple(conversation.messages)


def sealed(reasoning: str) -> str:
    """Reasoning as `encrypted_content`, for clients that send nothing else of it back."""
    return SEAL + base64.b64encode(reasoning.encode()).decode()


def _content(said: str | Sequence[InputPart] | None) -> Content:
    return said if isinstance(said, str) else content(part.part() for part in said or ())


def _reasoning_text(item: ReasoningItem, where: str) -> str:
    if item.content:
        return "".join(piece.text for piece in item.content)
    if item.encrypted_content and item.encrypted_content.startswith(SEAL):
        try:
            return base64.b64decode(item.encrypted_content.removeprefix(SEAL), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            field = f"{where}.encrypted_content"
            raise RequestError(f"'{field}' is damaged; send it as it was received or leave the item out", field) from None
    return "".join(piece.text for piece in item.summary or ())
