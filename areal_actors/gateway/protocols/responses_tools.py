"""The tools of OpenAI's Responses.

The model knows functions only: other kinds are functions of another name or with one argument.
A custom tool takes free text: it is a function with the argument `input`, and its calls are `custom_tool_call` items. A
function in a namespace has the joined name, `NAMESPACE__NAME`; its calls have both fields, as the client declared it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from areal_actors.gateway.protocols.call_fields import check_encodable, tool_definition
from areal_actors.gateway.protocols.client_tools import RESPONSES_TOOLS, ClientRunTool, screen_note
from areal_actors.gateway.protocols.custom_tools import CustomFormat, custom_description, custom_parameters
from areal_actors.gateway.protocols.fields import Ignored, RequestStruct, Text, convert, unsupported_error
from areal_actors.gateway.protocols.hosted_tools import OPENAI, ignored_tools, is_hosted

HINTS = ("strict", "defer_loading", "format", "output_schema")
"""Fields of tools that are accepted without effect; the grammar of a custom tool's `format` is in its description."""
ADDITIONAL = "additional_tools"
"""Type of the input items with more tools."""
SEPARATOR = "__"
SHOWN = {"type": "function", "description": None, "parameters": None, "strict": None}
"""Fields that every function of an answer's `tools` has."""


ToolLists: TypeAlias = dict[str, Sequence[dict[str, Any]]]
"""Tools of a request, by the path of their list."""


class ResponseFunction(RequestStruct, tag_field="type", tag="function", ignored=("strict", "defer_loading")):
    """A function that the model may call."""

    name: Text
    parameters: dict[str, Any] | None = None
    description: str | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    output_schema: Ignored = None


class CustomTool(RequestStruct, tag_field="type", tag="custom", ignored=("defer_loading",)):
    """A tool that takes text."""

    name: Text
    description: str | None = None
    format: CustomFormat | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class ItemTool(RequestStruct, ignored=("environment", "allowed_callers", *HINTS)):
    """A tool that the client runs and whose schema the provider knows.

    A computer has the size of its screen in pixels.
    """

    type: Text
    display_width: int | None = None
    display_height: int | None = None


class NamespaceTool(RequestStruct, tag_field="type", tag="namespace"):
    """A group of tools."""

    name: Text
    tools: list[dict[str, Any]]
    description: str | None = None


class AdditionalTools(RequestStruct, ignored=("id", "status", "role")):
    """An input item with more tools."""

    tools: list[dict[str, Any]]
    type: Literal["additional_tools"]


OF_TYPE: dict[str, type[RequestStruct]] = {
    "function": ResponseFunction,
    "custom": CustomTool,
    "namespace": NamespaceTool,
}
TOOLS: Mapping[str, type[RequestStruct]] = MappingProxyType(OF_TYPE | dict.fromkeys(RESPONSES_TOOLS, ItemTool))


@dataclass(frozen=True)
class ClientTool:
    """A tool as the client knows it."""

    name: str
    namespace: str = ""
    is_custom: bool = False
    provider: ClientRunTool | None = None
    """Tool with items of an own type."""


def declared_tools(tools: Sequence[dict[str, Any]] | None, items: str | Sequence[dict[str, Any]]) -> ToolLists:
    """Return the tools of a request, and those that items of its input add.

    Raises:
        RequestError: such an item is invalid.
    """
    lists: ToolLists = {"tools": tools or ()}
    for index, item in enumerate(() if isinstance(items, str) else items):
        if item.get("type") == ADDITIONAL:
            lists[f"input[{index}].tools"] = convert(item, AdditionalTools, f"input[{index}]").tools
    return lists


def tool_type(tool: dict[str, Any]) -> type[RequestStruct] | None:
    """Return the struct of a tool; None if its type is unknown, or it is hosted."""
    kind = tool.get("type", "function")
    return TOOLS.get(kind) if isinstance(kind, str) else None


def join_name(name: str, namespace: str | None) -> str:
    """Return the name of a tool for the model."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith(SEPARATOR) else f"{namespace}{SEPARATOR}{name}"


def definitions(declared: ToolLists) -> Iterator[dict[str, Any]]:
    """Yield the definitions of the tools for the model.

    Raises:
        RequestError: a tool is invalid, or its type is not supported.
    """
    for where, tools in declared.items():
        check_encodable(tools, where)  # the answer repeats them
        yield from _definitions(tools, where)


def _definitions(
    tools: Sequence[dict[str, Any]], where: str, namespace: NamespaceTool | None = None
) -> Iterator[dict[str, Any]]:
    for index, tool in enumerate(tools):
        field = f"{where}[{index}]"
        match kind := tool.get("type", "function"):
            case "function":
                function = convert(tool, ResponseFunction, field)
                yield _definition(function.name, function.description, function.parameters, namespace, first=index == 0)
            case "custom":
                yield _custom(convert(tool, CustomTool, field), namespace, first=index == 0)
            case "namespace" if namespace is None:
                group = convert(tool, NamespaceTool, field)
                yield from _definitions(group.tools, f"{field}.tools", group)
            case str() if kind in RESPONSES_TOOLS:
                given = convert(tool, ItemTool, field)
                yield RESPONSES_TOOLS[kind].definition(note=screen_note(given.display_width, given.display_height))
            case _ if not is_hosted(kind, OPENAI):
                raise unsupported_error(f"{field}.type", f"it is {kind!r:.60}: send functions or custom tools")


def _custom(tool: CustomTool, namespace: NamespaceTool | None, *, first: bool) -> dict[str, Any]:
    description = custom_description(tool.description, tool.format)
    return _definition(tool.name, description, custom_parameters(), namespace, first=first)


def _definition(
    name: str,
    description: str | None,
    parameters: dict[str, Any] | None,
    namespace: NamespaceTool | None,
    *,
    first: bool,
) -> dict[str, Any]:
    """Return a definition; the first one of a namespace has the description of the namespace, too."""
    if namespace is None:
        return tool_definition(name, description, parameters)
    if first and namespace.description:
        description = "\n\n".join([part for part in (namespace.description, description) if part])
    return tool_definition(join_name(name, namespace.name), description, parameters)


def client_tools(declared: ToolLists) -> dict[str, ClientTool]:
    """Return the tools that the client knows otherwise than the model does, by the model's names; they are valid."""
    return {name: tool for tools in declared.values() for name, tool in _client_tools(tools).items()}


def _client_tools(tools: Sequence[dict[str, Any]], namespace: str = "") -> dict[str, ClientTool]:
    by_name: dict[str, ClientTool] = {}
    for definition in tools:
        kind = definition.get("type", "function")
        if kind == "namespace":
            by_name |= _client_tools(definition["tools"], definition["name"])
        elif kind in RESPONSES_TOOLS:
            tool = RESPONSES_TOOLS[kind]
            by_name[tool.name] = ClientTool(tool.name, provider=tool)
        elif kind == "custom" or (kind == "function" and namespace):
            by_name[join_name(definition["name"], namespace)] = ClientTool(
                definition["name"], namespace, is_custom=kind == "custom"
            )
    return by_name


def shown_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as an answer repeats them."""
    return [SHOWN | tool if tool.get("type", "function") == "function" else tool for tool in tools]


def ignored_parts(declared: ToolLists) -> Iterator[str]:
    """Yield what the tools have that is accepted without effect."""
    for where, tools in declared.items():
        yield from ignored_tools(tools, OPENAI, HINTS, where)
        for index, tool in enumerate(tools):
            if tool.get("type") == "namespace":
                yield from ignored_tools(tool["tools"], OPENAI, HINTS, f"{where}[{index}].tools")
