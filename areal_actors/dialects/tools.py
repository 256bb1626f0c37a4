"""Tools in the words of a model call: what the model may use, what it must use, and which result belongs to which call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from areal_actors.dialects.fields import check_sendable
from areal_actors.errors import RequestError

NAMED = "function:"
"""How a `tool_choice` of a `CallModel` begins that names its tool."""

JSON = msgspec.json.Encoder()


def tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """A tool as chat templates know it."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def tool_call(identifier: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call as an assistant message has it."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def check_tools(tools: Iterable[dict[str, Any]], choice: str, *, continued: bool = False, field: str = "tool_choice") -> None:
    """A call that continues another may leave its tools out: then those of the other hold.

    Raises:
        RequestError: two tools have one name, or the choice asks for a tool that is not there.
    """
    names: set[str] = set()
    for index, one in enumerate(tools):
        name = one["function"]["name"]
        if name in names:
            raise RequestError(f"'tools[{index}]' has the name {name!r:.80} of an earlier tool; give each its own", f"tools[{index}]")
        names.add(name)
    if names:
        check_sendable(tools, "tools")
    elif continued:
        return
    if choice == "required" and not names:
        raise RequestError(f"'{field}' asks for a tool call, but there are no tools; give 'tools' or leave it out", field)
    if choice.startswith(NAMED) and choice.removeprefix(NAMED) not in names:
        raise RequestError(f"'{field}' names {choice.removeprefix(NAMED)!r:.80}, which is not among 'tools'", field)


class OpenCalls:
    """Tool calls of a conversation that wait for their result.

    A conversation that continues one held here may begin with results: their calls are not in the request.
    """

    def __init__(self, *, continued: bool = False) -> None:
        self._open: set[str] = set()
        self._continued = continued

    def called(self, identifier: str, field: str) -> None:
        """The model called a tool.

        Raises:
            RequestError: an open call has this id already.
        """
        if identifier in self._open:
            raise RequestError(f"'{field}' is {identifier!r:.80} like another open tool call's; give each call its own id", field)
        self._open.add(identifier)
        self._continued = False

    def answered(self, identifier: str, field: str) -> None:
        """A result came.

        Raises:
            RequestError: no open call has this id.
        """
        if identifier not in self._open and not self._continued:
            raise RequestError(f"'{field}' is {identifier!r:.80}, but no open tool call before it has this id; send the call too", field)
        self._open.discard(identifier)
