"""The tools of chat completions: functions and custom tools, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.call_fields import NAMED_TOOL, tool_definition
from areal_actors.gateway.protocols.custom_tools import NestedFormat, custom_description, custom_parameters
from areal_actors.gateway.protocols.fields import Ignored, RequestStruct, Text

Kind = Literal["function", "custom"]


class ChatFunction(RequestStruct):
    """A function that the model may call."""

    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Ignored = None


class ChatCustom(RequestStruct):
    """A tool that takes text."""

    name: Text
    description: str | None = None
    format: NestedFormat | None = None


class ChatTool(RequestStruct, ignored=("cache_control",)):
    """A tool: a function, or a custom tool."""

    type: Kind = "function"
    function: ChatFunction | None = None
    custom: ChatCustom | None = None


class ChatToolName(RequestStruct):
    """The name of a tool."""

    name: Text


class ChatAllowedTools(RequestStruct):
    """The tools that the model may call in this answer; the others stay in its prompt."""

    mode: Literal["auto", "required"]
    tools: Annotated[
        list[dict[str, Any]], msgspec.Meta(min_length=1, description="Functions and custom tools, by their names.")
    ]


class ChatToolChoice(RequestStruct):
    """The tool that the model must call, or those that it may call."""

    type: Literal["function", "custom", "allowed_tools"] = "function"
    function: ChatToolName | None = None
    custom: ChatToolName | None = None
    allowed_tools: ChatAllowedTools | None = None


Choice = Literal["auto", "none", "required"] | ChatToolChoice


def chat_tool_type(tool: dict[str, Any]) -> type[RequestStruct] | None:
    """Return the struct of a tool; None if its type is unknown."""
    return ChatTool if tool.get("type", "function") in ("function", "custom") else None


def chat_definitions(tools: Sequence[ChatTool]) -> Iterator[dict[str, Any]]:
    """Yield the definitions of the tools for the model.

    Raises:
        RequestError: a tool lacks the object of its type.
    """
    for index, tool in enumerate(tools):
        if tool.type == "custom" and tool.custom is not None:
            yield tool_definition(
                tool.custom.name, custom_description(tool.custom.description, tool.custom.format), custom_parameters()
            )
        elif tool.type == "function" and tool.function is not None:
            yield tool_definition(tool.function.name, tool.function.description, tool.function.parameters)
        else:
            raise missing(f"tools[{index}].{tool.type}")


def choice_fields(choice: Choice | None) -> tuple[str, Sequence[str] | None]:
    """Return the tool choice of a `ModelRequest`, and the names of the tools that it allows; None for all.

    Raises:
        RequestError: the choice lacks the object of its type, or an allowed tool has no name.
    """
    if not isinstance(choice, ChatToolChoice):
        return choice or "auto", None
    named = choice.custom if choice.type == "custom" else choice.function
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        names = [
            _name_of(tool, f"tool_choice.allowed_tools.tools[{index}]")
            for index, tool in enumerate(choice.allowed_tools.tools)
        ]
        return choice.allowed_tools.mode, names
    if choice.type == "allowed_tools" or named is None:
        raise missing(f"tool_choice.{choice.type}")
    return NAMED_TOOL + named.name, None


def _name_of(tool: dict[str, Any], where: str) -> str:
    kind = tool.get("type", "function")
    if kind not in ("function", "custom"):
        raise RequestError(f"'{where}.type' is {kind!r:.60}; name functions and custom tools only", f"{where}.type")
    inner = tool.get(kind)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str) or not name:
        raise missing(f"{where}.{kind}.name")
    return name


def missing(field: str) -> RequestError:
    """Return the error of a field that the type of its object requires."""
    return RequestError(f"'{field}' is missing; this request requires it", field)


def custom_names(tools: Sequence[ChatTool]) -> frozenset[str]:
    """Return the names of the custom tools."""
    return frozenset(tool.custom.name for tool in tools if tool.type == "custom" and tool.custom is not None)


def custom_call(identifier: str, name: str, text: str) -> dict[str, Any]:
    """Return the call of a custom tool."""
    return {"id": identifier, "type": "custom", "custom": {"name": name, "input": text}}
