"""Writes tables as a recipe in TOML."""

from __future__ import annotations

from typing import Any

import msgspec

from areal_actors.core.problems import toml_key, toml_value


def recipe_toml(tables: dict[str, Any]) -> str:
    """Returns the tables of a recipe as TOML; what is None is left out."""
    return _table(msgspec.to_builtins(tables), ()).lstrip("\n")


def _table(table: dict[str, Any], path: tuple[str, ...]) -> str:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict) and value is not None}
    head = f"\n[{'.'.join(map(toml_key, path))}]\n" if path and plain else ""
    lines = "".join(f"{toml_key(key)} = {toml_value(value)}\n" for key, value in plain.items())
    tables = ((key, value) for key, value in table.items() if isinstance(value, dict))
    return head + lines + "".join(_table(value, (*path, key)) for key, value in tables)
