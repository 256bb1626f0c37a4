"""Settings of a recipe that differ from their defaults, for people who check what they wrote."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any, Final

import msgspec

from areal_actors.core.layers import Key
from areal_actors.core.problems import toml_value
from areal_actors.recipe.recipe import Recipe

WIDTH, LABEL = 118, 11
MOST_LINES: Final = 8
"""Lines of settings in the short form of a check."""


def changed_settings(recipe: Recipe) -> Iterator[tuple[Key, Any]]:
    """Yields the key and the value of each setting that is not as in a recipe that leaves it out."""
    yield from _differences(recipe, None, ())


def _differences(table: msgspec.Struct, default: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    """`default` is the table of a recipe that leaves it out, if that has one."""
    if type(default) is not type(table):
        default = None
        if (tag := table.__struct_config__.tag) is not None:
            yield (*key, table.__struct_config__.tag_field or "type"), tag
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        usual = getattr(default, field.name) if default is not None else _default_of(field)
        place = (*key, field.encode_name)
        if isinstance(value, msgspec.Struct):
            yield from _differences(value, usual, place)
        elif value != usual:
            yield place, msgspec.to_builtins(value)


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    """Returns the default of a field; what equals no value if it has none."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def describe_changes(recipe: Recipe, stated: Collection[str]) -> Iterator[str]:
    """Yields lines of the changed settings by table; those whose dotted names are in `stated` have a star."""
    lines: list[str] = []
    for table, settings in groupby(changed_settings(recipe), lambda pair: pair[0][0] if len(pair[0]) > 1 else ""):
        written = ", ".join(
            f"{'*' * ('.'.join(key) in stated)}{'.'.join(key[1:] if table else key)} = {toml_value(value)}"
            for key, value in settings
        )
        label = f"{table:<{LABEL}} "
        lines += textwrap.wrap(
            written,
            WIDTH,
            initial_indent=label,
            subsequent_indent=" " * len(label) if len(label) == LABEL + 1 else " " * (LABEL + 1),
            break_long_words=False,
            break_on_hyphens=False,
        )
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield f"{'':<{LABEL}} … and {len(lines) - MOST_LINES} more lines (--full)"
