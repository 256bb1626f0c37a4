"""The input items of OpenAI's Responses, and their conversion to messages.

One turn of the model is several items in the request (reasoning, a message, function calls) and becomes one assistant message,
so that a conversation sent back equals the model's earlier answers. A turn ends at a message of another role, at a second
text, and at reasoning.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.content import Content, TextContent, content, image_part
from areal_actors.gateway.protocols.fields import RequestStruct, Text, convert, unsupported
from areal_actors.gateway.protocols.tools import PendingToolCalls, tool_call

ENCRYPTED_PREFIX = "areal:"
"""Prefix of reasoning sent as `encrypted_content`: opaque to clients, not secret."""


class InputText(TextContent, tag_field="type", tag="input_text", ignored=("prompt_cache_breakpoint",)):
    """Text of a user, or of a tool."""


class OutputText(TextContent, tag_field="type", tag="output_text", ignored=("annotations", "logprobs", "parsed")):
    """Text of the model, sent back."""


class InputImage(
    RequestStruct, tag_field="type", tag="input_image", ignored=("detail", "prompt_cache_breakpoint"), unsupported=("file_id",)
):
    """An image."""

    image_url: Text

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        return image_part(self.image_url)


InputPart = InputText | OutputText | InputImage


class InputItem(RequestStruct, ignored=("id", "status")):
    """Fields of all items."""


class MessageItem(InputItem, ignored=("phase",)):
    """A message of any role."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart] | None
    type: Literal["message"] = "message"


class FunctionCallItem(InputItem, ignored=("caller", "parsed_arguments"), unsupported=("async_", "namespace")):
    """A function call of the model."""

    call_id: Text
    name: Text
    arguments: str
    type: Literal["function_call"]


class FunctionOutputItem(InputItem, ignored=("name", "caller"), unsupported=("namespace",)):
    """The result of a function call."""

    call_id: Text
    output: str | list[InputPart] | None
    type: Literal["function_call_output"]


class ReasoningText(RequestStruct):
    """A part of reasoning, or of its summary."""

    text: str
    type: Literal["reasoning_text", "summary_text"]


class ReasoningItem(InputItem):
    """Reasoning of the model before its answer."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class MessageBuilder:
    """Converts input items to messages."""

    def __init__(self, instructions: str | None, *, continued: bool) -> None:
        self.messages: list[dict[str, Any]] = []
        self._calls = PendingToolCalls(continued=continued)
        self._assistant: dict[str, Any] | None = None
        """The assistant message that later items may extend."""
        if instructions:
            self._append("system", instructions)

    def add(self, item: dict[str, Any], index: int) -> None:
        """Convert the next item.

        Raises:
            RequestError: the item is invalid or its type is not supported; the error names it.
        """
        where = f"input[{index}]"
        match item.get("type") or "message":
            case "message":
                message = {name: value for name, value in item.items() if name != "type" or value}
                self._add_message(convert(message, MessageItem, where), where)
            case "function_call":
                call = convert(item, FunctionCallItem, where)
                self._calls.add_call(call.call_id, f"{where}.call_id")
                self._assistant_message().setdefault("tool_calls", []).append(tool_call(call.call_id, call.name, call.arguments))
            case "function_call_output":
                output = convert(item, FunctionOutputItem, where)
                self._calls.add_result(output.call_id, f"{where}.call_id")
                self._append("tool", content(output.output), tool_call_id=output.call_id)
            case "reasoning":
                if reasoning := _reasoning_text(convert(item, ReasoningItem, where), where):
                    self._assistant_message(new=True)["reasoning_content"] = reasoning
            case "item_reference":
                raise unsupported(f"{where}.type", "it is 'item_reference': send the item itself or 'previous_response_id'")
            case kind:
                raise unsupported(f"{where}.type", f"it is {kind!r:.60}: leave such items out")

    def _add_message(self, message: MessageItem, where: str) -> None:
        text = content(message.content)
        if message.role != "assistant":
            self._append("system" if message.role == "developer" else message.role, text)
            return
        if not isinstance(text, str):
            raise unsupported(f"{where}.content", "assistant messages are text only, leave images out")
        self._assistant_message(new=self._assistant is not None and bool(self._assistant["content"]))["content"] = text

    def _append(self, role: str, text: Content, **more: str) -> None:
        self._assistant = None
        self.messages.append({"role": role, "content": text, **more})

    def _assistant_message(self, *, new: bool = False) -> dict[str, Any]:
        if self._assistant is None or new:
            self._assistant = {"role": "assistant", "content": ""}
            self.messages.append(self._assistant)
        return self._assistant


def input_messages(items: str | Sequence[dict[str, Any]], instructions: str | None, *, continued: bool) -> tuple[dict[str, Any], ...]:
    """Convert the input to messages; instructions become the first one, a system message.

    Raises:
        RequestError: an item is invalid; it names the item and the field.
    """
    builder = MessageBuilder(instructions, continued=continued)
    for index, item in enumerate([{"role": "user", "content": items}] if isinstance(items, str) else items):
        builder.add(item, index)
    if not builder.messages:
        raise RequestError("'input' contains no message; send at least one", "input")
    return tuple(builder.messages)


def encode_reasoning(reasoning: str) -> str:
    """Encode reasoning as `encrypted_content`, for clients that send back only this field of it."""
    return ENCRYPTED_PREFIX + base64.b64encode(reasoning.encode()).decode()


def _reasoning_text(item: ReasoningItem, where: str) -> str:
    if item.content:
        return "".join(part.text for part in item.content)
    if item.encrypted_content and item.encrypted_content.startswith(ENCRYPTED_PREFIX):
        try:
            return base64.b64decode(item.encrypted_content.removeprefix(ENCRYPTED_PREFIX), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            field = f"{where}.encrypted_content"
            raise RequestError(f"'{field}' is damaged; send it as it was received or leave the item out", field) from None
    return "".join(part.text for part in item.summary or ())
