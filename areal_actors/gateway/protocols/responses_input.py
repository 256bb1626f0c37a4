"""The input items of OpenAI's Responses, and their conversion to messages.

One turn of the model is several items in the request (reasoning, a message, function calls) and becomes one assistant
message, so that a conversation sent back equals the model's earlier answers. A turn ends at a message of another role,
at a second text, and at reasoning.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.base import JSON
from areal_actors.gateway.protocols.call_fields import check_encodable
from areal_actors.gateway.protocols.client_tools import RESPONSES_TOOLS
from areal_actors.gateway.protocols.custom_tools import custom_arguments
from areal_actors.gateway.protocols.fields import RequestStruct, Text, convert, unsupported_error
from areal_actors.gateway.protocols.message_builder import MessageBuilder, TextContent, content, image_part
from areal_actors.gateway.protocols.responses_tools import ADDITIONAL, AdditionalTools, join_name

ENCRYPTED_PREFIX = "areal:"
"""Prefix of reasoning sent as `encrypted_content`: opaque to clients, not secret."""
REFERENCE = "item_reference"
REFERENCES = ("msg", "rs", "fc", "ctc")
"""Prefixes of the ids of items in answers (`responses_answer.py`)."""


class InputText(TextContent, tag_field="type", tag="input_text", ignored=("prompt_cache_breakpoint",)):
    """Text of a user, or of a tool."""


class OutputText(TextContent, tag_field="type", tag="output_text", ignored=("annotations", "logprobs", "parsed")):
    """Text of the model, sent back."""


class InputImage(
    RequestStruct,
    tag_field="type",
    tag="input_image",
    ignored=("detail", "prompt_cache_breakpoint"),
    unsupported=("file_id",),
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

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        text = content(self.content)
        if self.role != "assistant":
            builder.add("system" if self.role == "developer" else self.role, text)
            return
        if not isinstance(text, str):
            raise unsupported_error(f"{where}.content", "assistant messages are text only, leave images out")
        if builder.assistant()["content"]:
            builder.add("assistant", text)
        else:
            builder.assistant()["content"] = text


class FunctionCallItem(InputItem, ignored=("async_", "caller", "parsed_arguments")):
    """A function call of the model."""

    call_id: Text
    name: Text
    arguments: str
    type: Literal["function_call"]
    namespace: str | None = None

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        builder.add_call(
            builder.assistant(), self.call_id, join_name(self.name, self.namespace), self.arguments, f"{where}.call_id"
        )


class CustomCallItem(InputItem, ignored=("caller",)):
    """A call of a custom tool by the model."""

    call_id: Text
    name: Text
    input: str
    type: Literal["custom_tool_call"]
    namespace: str | None = None

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        name, arguments = join_name(self.name, self.namespace), custom_arguments(self.input)
        builder.add_call(builder.assistant(), self.call_id, name, arguments, f"{where}.call_id")


class ProviderCallItem(
    InputItem, ignored=("caller", "environment", "created_by", "max_output_length", "pending_safety_checks")
):
    """A call of a tool whose schema the provider knows."""

    call_id: Text
    type: Literal["shell_call", "local_shell_call", "apply_patch_call", "computer_call"]
    action: dict[str, Any] | None = None
    actions: list[dict[str, Any]] | None = None
    operation: dict[str, Any] | None = None

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        kind = self.type.removesuffix("_call")
        tool = RESPONSES_TOOLS["computer_use_preview" if kind == "computer" and self.actions is None else kind]
        given = getattr(self, tool.field)
        if given is None:
            raise RequestError(f"'{where}.{tool.field}' is missing; this item requires it", f"{where}.{tool.field}")
        check_encodable(given, f"{where}.{tool.field}")
        builder.add_call(builder.assistant(), self.call_id, tool.name, tool.to_arguments(given), f"{where}.call_id")


class ProviderOutputItem(RequestStruct, ignored=("caller", "max_output_length", "created_by")):
    """The result of such a call; results of a shell are shown as JSON."""

    type: Literal["shell_call_output", "local_shell_call_output", "apply_patch_call_output"]
    call_id: Text | None = None
    id: str | None = None
    status: str | None = None
    output: Any = None

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        identifier = self.call_id or self.id  # local_shell has it in `id`
        if not identifier:
            raise RequestError(f"'{where}.call_id' is missing; this item requires it", f"{where}.call_id")
        check_encodable(self.output, f"{where}.output")
        text = (
            self.output
            if isinstance(self.output, str)
            else JSON.encode(self.output or {"status": self.status}).decode()
        )
        builder.add_result(identifier, text, f"{where}.call_id")


class Screenshot(
    RequestStruct,
    tag_field="type",
    tag="computer_screenshot",
    ignored=("detail", "prompt_cache_breakpoint"),
    unsupported=("file_id",),
):
    """An image of the screen."""

    image_url: Text

    def part(self) -> dict[str, Any]:
        """Convert to a content part."""
        return image_part(self.image_url)


class ComputerOutputItem(InputItem, ignored=("acknowledged_safety_checks", "created_by", "caller", "current_url")):
    """The result of a computer's call: a screenshot, or text."""

    call_id: Text
    output: str | Screenshot | InputText | InputImage | list[Screenshot | InputText | InputImage]
    type: Literal["computer_call_output"]

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        parts = self.output if isinstance(self.output, str | list) else [self.output]
        builder.add_result(self.call_id, content(parts), f"{where}.call_id")


class FunctionOutputItem(InputItem, ignored=("name", "namespace", "caller")):
    """The result of a function call or of a custom tool's call."""

    call_id: Text
    output: str | list[InputPart] | None
    type: Literal["function_call_output", "custom_tool_call_output"]

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        builder.add_result(self.call_id, content(self.output), f"{where}.call_id")


class ReferenceItem(RequestStruct):
    """An item of an earlier answer, by its id.

    An id is `msg_` or `rs_` and the answer's id, or `fc_` or `ctc_` and the tool call's id.
    """

    id: Text
    type: Literal["item_reference"]

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        kind, _, identifier = self.id.partition("_")
        field = f"{where}.id"
        if not identifier or kind not in REFERENCES:
            raise RequestError(
                f"'{field}' is {self.id!r:.80}, which is no id of an item of an answer; send the item itself", field
            )
        if kind == "rs":
            builder.add("assistant", "")["reasoning_content"] = builder.refer(identifier, field)
        elif kind == "msg":
            message = builder.add("assistant", "") if builder.assistant()["content"] else builder.assistant()
            message["content"] = builder.refer(identifier, field)
        else:
            message = builder.assistant()
            builder.add_call(message, identifier, "", "", field)
            message["tool_calls"][-1]["function"] = builder.refer(identifier, field)


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

    def add_to(self, builder: MessageBuilder, where: str) -> None:
        """See `Turn`."""
        if reasoning := self._text(where):
            builder.add("assistant", "")["reasoning_content"] = reasoning

    def _text(self, where: str) -> str:
        if self.content:
            return "".join(part.text for part in self.content)
        if self.encrypted_content and self.encrypted_content.startswith(ENCRYPTED_PREFIX):
            try:
                return base64.b64decode(self.encrypted_content.removeprefix(ENCRYPTED_PREFIX), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                field = f"{where}.encrypted_content"
                raise RequestError(
                    f"'{field}' is damaged; send it as it was received or leave the item out", field
                ) from None
        return "".join(part.text for part in self.summary or ())


Item = (
    MessageItem
    | FunctionCallItem
    | CustomCallItem
    | FunctionOutputItem
    | ReasoningItem
    | ReferenceItem
    | ProviderCallItem
    | ProviderOutputItem
    | ComputerOutputItem
)
ITEMS: dict[str, type[Item]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": FunctionOutputItem,
    "reasoning": ReasoningItem,
    **dict.fromkeys([tool.item for tool in RESPONSES_TOOLS.values()], ProviderCallItem),
    **dict.fromkeys([f"{tool.item}_output" for tool in RESPONSES_TOOLS.values()], ProviderOutputItem),
    "computer_call_output": ComputerOutputItem,
    "item_reference": ReferenceItem,
}


def kind_of(item: Mapping[str, Any]) -> Any:
    """Return the type of an item; one without a type is a reference or a message."""
    return item.get("type") or (REFERENCE if "id" in item and item.keys() <= {"id", "type"} else "message")


def item_type(item: dict[str, Any]) -> type[RequestStruct] | None:
    """Return the struct of an item; None if its type is unknown."""
    kind = kind_of(item)
    return AdditionalTools if kind == ADDITIONAL else ITEMS.get(kind) if isinstance(kind, str) else None


def input_fields(items: str | Sequence[dict[str, Any]], instructions: str | None, *, continued: bool) -> dict[str, Any]:
    """Return `messages` and `has_references` of a `ModelRequest`.

    Instructions become the first message, a system message.

    Raises:
        RequestError: an item is invalid or its type is not supported; the error names the item and the field.
    """
    builder = MessageBuilder(instructions, continued=continued)
    for index, item in enumerate([{"role": "user", "content": items}] if isinstance(items, str) else items):
        where = f"input[{index}]"
        kind = kind_of(item)
        if kind == ADDITIONAL:
            continue
        if not isinstance(kind, str) or kind not in ITEMS:
            raise unsupported_error(f"{where}.type", f"it is {kind!r:.60}: leave such items out")
        convert(item | {"type": kind}, ITEMS[kind], where).add_to(builder, where)
    if not builder.messages:
        raise RequestError("'input' contains no message; send at least one", "input")
    return {"messages": tuple(builder.messages), "has_references": builder.has_references}


def encode_reasoning(reasoning: str) -> str:
    """Encode reasoning as `encrypted_content`, for clients that send back only this field of it."""
    return ENCRYPTED_PREFIX + base64.b64encode(reasoning.encode()).decode()
