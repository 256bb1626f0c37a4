"""Tools that the client runs and whose schema the provider knows.

For a model behind this gateway they are functions with that schema.
Clients declare them by their type alone, as `{"type": "bash_20250124", "name": "bash"}`: the provider's own models know
the rest. In the Responses API their calls are items of an own type, with the arguments in one field; in Anthropic's
they are calls as any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from areal_actors.gateway.protocols.base import JSON
from areal_actors.gateway.protocols.call_fields import tool_definition

TEXT: Mapping[str, Any] = {"type": "string"}
WHOLE: Mapping[str, Any] = {"type": "integer"}
LINES: dict[str, Any] = {"type": "array", "items": WHOLE, "description": "First and last line; -1 is the end."}
POINT: Mapping[str, Any] = {"type": "array", "items": WHOLE, "description": "x and y in pixels."}


def _schema(required: Sequence[str], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: dict(value) for name, value in properties.items()},
        "required": list(required),
    }


def _choice(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


class ClientRunTool(NamedTuple):
    """A tool by its public schema."""

    name: str
    """Its name, unless the client gives another."""
    description: str
    parameters: dict[str, Any]
    item: str = ""
    """Type of the items of its calls in the Responses API."""
    field: str = ""
    """Field of such an item with the arguments."""

    is_list: bool = False
    """True if that field is a list, and the only argument."""
    extra: Mapping[str, Any] = MappingProxyType({})
    """Other fields that clients expect in such an item."""

    def from_arguments(self, arguments: str) -> dict[str, Any] | list[Any]:
        """Return the field of an item from the arguments of a call; those that are no object are its only entry."""
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            value = None
        value = value if isinstance(value, dict) else {"arguments": arguments}
        if self.is_list:
            inner = value.get(self.field)
            return inner if isinstance(inner, list) else [value]
        return {"type": "exec", "env": {}, **value} if self.name == "local_shell" else value

    def to_arguments(self, value: Mapping[str, Any] | Sequence[Any]) -> str:
        """Return the arguments of a call from the field of an item that the client sends back."""
        if not isinstance(value, Mapping):
            return JSON.encode({self.field: value}).decode()
        given = {
            name: inner
            for name, inner in value.items()
            if inner is not None and (name in self.parameters["properties"])
        }
        if self.name == "local_shell" and not given.get("env"):
            given.pop("env", None)
        return JSON.encode(given).decode()

    def definition(self, name: str = "", note: str = "") -> dict[str, Any]:
        """Return its definition for the model."""
        return tool_definition(name or self.name, self.description + note, self.parameters)


EDITOR = {
    "path": TEXT,
    "file_text": TEXT,
    "old_str": TEXT,
    "new_str": TEXT,
    "insert_line": WHOLE,
    "insert_text": TEXT,
    "view_range": LINES,
}
ACTIONS = (
    *(
        "screenshot",
        "key",
        "type",
        "mouse_move",
        "left_click",
        "right_click",
        "middle_click",
        "double_click",
        "triple_click",
    ),
    *("left_click_drag", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "cursor_position", "zoom"),
)
ANTHROPIC_TOOLS: Mapping[str, ClientRunTool] = MappingProxyType(
    {
        "bash": ClientRunTool(
            "bash",
            "Runs a command in a bash session that persists between calls; `restart` begins a new one.",
            _schema((), command=TEXT, restart={"type": "boolean"}),
        ),
        "text_editor": ClientRunTool(
            "str_replace_based_edit_tool",
            "Views, creates and edits files.",
            _schema(("command", "path"), command=_choice("view", "create", "str_replace", "insert"), **EDITOR),
        ),
        "memory": ClientRunTool(
            "memory",
            "Views and edits files of a memory folder.",
            _schema(
                ("command",),
                command=_choice("view", "create", "str_replace", "insert", "delete", "rename"),
                **EDITOR,
                old_path=TEXT,
                new_path=TEXT,
            ),
        ),
        "computer": ClientRunTool(
            "computer",
            "Uses a screen, a mouse and a keyboard.",
            _schema(
                ("action",),
                action=_choice(*ACTIONS),
                coordinate=POINT,
                start_coordinate=POINT,
                text=TEXT,
                scroll_direction=_choice("up", "down", "left", "right"),
                scroll_amount=WHOLE,
                duration={"type": "number"},
                region=LINES | {"description": "x0, y0, x1 and y1 in pixels."},
            ),
        ),
    }
)
"""By the beginning of their type, which ends with a date."""
DATED = re.compile(r"(bash|text_editor|memory|computer)_\d{8}", re.ASCII)

SCREEN_ACTION = _schema(
    ("type",),
    type=_choice("click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type", "wait"),
    x=WHOLE,
    y=WHOLE,
    button=_choice("left", "right", "wheel", "back", "forward"),
    keys={"type": "array", "items": TEXT},
    path={"type": "array", "items": _schema(("x", "y"), x=WHOLE, y=WHOLE)},
    scroll_x=WHOLE,
    scroll_y=WHOLE,
    text=TEXT,
)
"""An action of a `computer_call`; coordinates and distances are in pixels."""
COMPUTER = "Uses a screen, a mouse and a keyboard; the result is a screenshot."
SAFETY: Mapping[str, Any] = MappingProxyType({"pending_safety_checks": ()})
RESPONSES_TOOLS: Mapping[str, ClientRunTool] = MappingProxyType(
    {
        "computer": ClientRunTool(
            "computer",
            COMPUTER,
            _schema(("actions",), actions={"type": "array", "items": SCREEN_ACTION}),
            *("computer_call", "actions"),
            is_list=True,
            extra=SAFETY,
        ),
        "computer_use_preview": ClientRunTool(
            "computer", COMPUTER, SCREEN_ACTION, "computer_call", "action", extra=SAFETY
        ),
        "shell": ClientRunTool(
            "shell",
            "Runs shell commands.",
            _schema(
                ("commands",), commands={"type": "array", "items": TEXT}, timeout_ms=WHOLE, max_output_length=WHOLE
            ),
            *("shell_call", "action"),
        ),
        "local_shell": ClientRunTool(
            "local_shell",
            "Runs one command, a list of the program and its arguments.",
            _schema(
                ("command",),
                command={"type": "array", "items": TEXT},
                env={"type": "object"},
                timeout_ms=WHOLE,
                working_directory=TEXT,
            ),
            *("local_shell_call", "action"),
        ),
        "apply_patch": ClientRunTool(
            "apply_patch",
            "Creates, updates or deletes a file; `diff` is in the V4A format, without it for a file that is deleted.",
            _schema(("type", "path"), type=_choice("create_file", "update_file", "delete_file"), path=TEXT, diff=TEXT),
            *("apply_patch_call", "operation"),
        ),
    }
)
"""By their type."""


def screen_note(width: int | None, height: int | None) -> str:
    """Return the sentence about the screen of a computer for its description; empty without a size."""
    return f" The screen has {width} x {height} pixels." if width and height else ""


def anthropic_tool(kind: object) -> ClientRunTool | None:
    """Return the tool of a type of Anthropic's API; None if the client does not run it."""
    match = DATED.fullmatch(kind) if isinstance(kind, str) else None
    return ANTHROPIC_TOOLS[match[1]] if match else None
