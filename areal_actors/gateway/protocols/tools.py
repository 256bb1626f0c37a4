"""Tools of a `ModelRequest`: definitions, tool choice, and matching of tool results to calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.call_fields import check_encodable

NAMED_TOOL = "function:"
"""Prefix of a `tool_choice` of a `ModelRequest` that names its tool."""


def tool_definition(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return a tool's definition in the form that chat templates take."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def tool_call(identifier: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call of an assistant message."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_fields(definitions: Iterable[dict[str, Any]], choice: str, *, continued: bool = False) -> dict[str, Any]:
    """Return `tools` and `tool_choice` of a `ModelRequest`; a call that continues another may omit its tools and inherit the other's.

    Raises:
        RequestError: two tools have the same name, or the choice requires a missing tool.
    """
    tools = tuple(definitions)
    names: set[str] = set()
    for index, one in enumerate(tools):
        name = one["function"]["name"]
        if name in names:
            raise RequestError(f"'tools[{index}]' has the same name {name!r:.80} as an earlier tool; rename one", f"tools[{index}]")
        names.add(name)
    if names:
        check_encodable(tools, "tools")
    if names or not continued:
        _check_choice(choice, names)
    return {"tools": tools, "tool_choice": choice}


def _check_choice(choice: str, names: set[str]) -> None:
    field = "tool_choice"
    if choice == "required" and not names:
        raise RequestError(f"'{field}' requires a tool call, but there are no tools; send 'tools' or leave it out", field)
    if choice.startswith(NAMED_TOOL) and choice.removeprefix(NAMED_TOOL) not in names:
        raise RequestError(f"'{field}' names {choice.removeprefix(NAMED_TOOL)!r:.80}, which is not among 'tools'", field)
