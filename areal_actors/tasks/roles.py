"""Roles of tasks: the value of one of their fields, such as the side that a player has in a game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_actors.core.errors import SetupError
from areal_actors.tasks.datasets import Tasks


def read_role(data: Mapping[str, Any], field: str) -> str:
    """Returns the role of a task: the text or whole number in this field of its data.

    Raises:
        SetupError: the task has no such field, or it is neither.
    """
    role = data.get(field)
    if isinstance(role, int) and not isinstance(role, bool):
        return str(role)
    if isinstance(role, str) and role.strip():
        return role
    found = f"`{field}` is {role!r:.80}" if field in data else f"it has no field `{field}`, only {', '.join(data)}"
    raise SetupError(
        f"algorithm.role_field: task {data.get('id', '')} has no role: {found}; write a text or a whole number there,"
        ' name the field that has the roles, or set it to "" for one baseline'
    )


def check_roles(tasks: Tasks, field: str) -> None:
    """Read the role of every task.

    Raises:
        SetupError: one has none; the message names it.
    """
    for number in tasks.numbers:
        read_role(tasks.row_task(number).data, field)
