"""The tool choice of OpenAI's Responses: a mode, one tool, or those that may be called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.call_fields import NAMED_TOOL
from areal_actors.gateway.protocols.chat_tools import missing
from areal_actors.gateway.protocols.client_tools import RESPONSES_TOOLS
from areal_actors.gateway.protocols.fields import RequestStruct, Text, unsupported_error
from areal_actors.gateway.protocols.hosted_tools import OPENAI, is_hosted
from areal_actors.gateway.protocols.responses_tools import join_name

NAMED_KINDS = ("function", "custom")
HOSTED = ("mcp", "file_search", "code_interpreter")
"""Types of hosted tools in a list of allowed tools, beside those that may be declared."""


class ResponseToolChoice(RequestStruct, tag_field="type", tag="function"):
    """The model must call this function."""

    name: Text


class ResponseCustomChoice(RequestStruct, tag_field="type", tag="custom"):
    """The model must call this custom tool."""

    name: Text


class ShellChoice(RequestStruct, tag_field="type", tag="shell"):
    """The model must call the tool of this type, whose schema the provider knows."""

    kind: ClassVar[str] = "shell"


class LocalShellChoice(ShellChoice, tag_field="type", tag="local_shell"):
    """The same for a shell with one command."""

    kind: ClassVar[str] = "local_shell"


class ApplyPatchChoice(ShellChoice, tag_field="type", tag="apply_patch"):
    """The same for patches."""

    kind: ClassVar[str] = "apply_patch"


class ComputerChoice(ShellChoice, tag_field="type", tag="computer"):
    """The same for a computer."""

    kind: ClassVar[str] = "computer"


class ComputerUseChoice(ShellChoice, tag_field="type", tag="computer_use"):
    """Another name of it."""

    kind: ClassVar[str] = "computer"


class ComputerPreviewChoice(ShellChoice, tag_field="type", tag="computer_use_preview"):
    """The same for a computer, one action at a time."""

    kind: ClassVar[str] = "computer_use_preview"


class AllowedToolsChoice(RequestStruct, tag_field="type", tag="allowed_tools"):
    """The model may call these tools; the others stay in its prompt."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1, description="Tools by type and name.")]


Provided = (
    ShellChoice | LocalShellChoice | ApplyPatchChoice | ComputerChoice | ComputerUseChoice | ComputerPreviewChoice
)
Choice = Literal["auto", "none", "required"] | ResponseToolChoice | ResponseCustomChoice | AllowedToolsChoice | Provided


def choice_fields(choice: Choice | None) -> tuple[str, Sequence[str] | None]:
    """Return the tool choice of a `ModelRequest`, and the names of the tools that it allows; None for all.

    Raises:
        RequestError: an allowed tool is unknown or has no name, or one is required and all are hosted.
    """
    match choice:
        case AllowedToolsChoice(mode=mode, tools=tools):
            names = [
                name for index, tool in enumerate(tools) if (name := _name_of(tool, f"tool_choice.tools[{index}]"))
            ]
            if not names and mode == "required":
                raise RequestError(
                    "'tool_choice' requires a call of tools that the model cannot call; name others", "tool_choice"
                )
            return (mode, names) if names else ("none", None)
        case ResponseToolChoice(name=name) | ResponseCustomChoice(name=name):
            return NAMED_TOOL + name, None
        case ShellChoice():
            return NAMED_TOOL + RESPONSES_TOOLS[choice.kind].name, None
    return choice or "auto", None


def ignored_choices(choice: Choice | None) -> Iterator[str]:
    """Yield the allowed tools that the model cannot call."""
    for index, tool in enumerate(choice.tools if isinstance(choice, AllowedToolsChoice) else ()):
        if not _name_of(tool, ""):
            yield f"tool_choice.tools[{index}] ({tool['type']})"


def _name_of(tool: dict[str, Any], where: str) -> str:
    """Return the name of an allowed tool for the model; empty if it is hosted."""
    kind = tool.get("type", "function")
    if kind in NAMED_KINDS:
        name, namespace = tool.get("name"), tool.get("namespace")
        if not isinstance(name, str) or not name:
            raise missing(f"{where}.name")
        return join_name(name, namespace if isinstance(namespace, str) else None)
    if isinstance(kind, str) and kind in RESPONSES_TOOLS:
        return RESPONSES_TOOLS[kind].name
    if kind in HOSTED or is_hosted(kind, OPENAI):
        return ""
    raise unsupported_error(f"{where}.type", f"it is {kind!r:.60}: name functions and custom tools")
