"""Error messages for recipes, in three parts: file and line, the value found, and the remedy.

msgspec reports only the first error, without a line. Here its message becomes a sentence, the faulty setting is
removed, and the rest is decoded again, until all errors are reported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from areal_actors.core.layers import Key, Layer
from areal_actors.core.problems import closest, nearest, toml_key, toml_value

T = TypeVar("T")

PATTERNS = {"^[a-z0-9][a-z0-9-]*$": "lowercase letters, digits and hyphens, as in `my-run-2`"}
"""Description of a pattern of a setting."""
TYPO = 0.8
"""Similarity from which a name is a mistyped one of its table, whatever other tables have."""
MOST_HINTS = 3
"""Settings of the same name in other tables that a hint lists; with more of them it would not help."""
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}


def decode(
    layer: Layer, kind: type[T], *, table: Key = (), directives: tuple[str, ...] = ()
) -> tuple[T | None, list[str]]:
    """Decode settings into `kind`; returns it, or None and every complaint.

    `table` is the key of the settings in the recipe; `directives` are allowed keys that are not fields of `kind`.
    """
    complaints: list[str] = []
    data = deepcopy(layer.data)
    while True:
        try:
            decoded = msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            complaint, key = _fault(data, kind, str(error))
            missing = complaint.startswith("Object missing")
            if not missing or not _was_removed(layer.data, key):
                complaints.append(_Explanation(layer, kind, table, directives).of(complaint, key))
            if not _remove(data, key[:-1] if missing else key):
                return None, complaints
        else:
            return (None if complaints else decoded), complaints


class _Explanation:
    """Turns one msgspec error into a sentence."""

    def __init__(self, layer: Layer, kind: type[Any], table: Key, directives: tuple[str, ...]) -> None:
        self.layer = layer
        self.kind = kind
        self.table = table
        self.directives = directives

    def of(self, complaint: str, key: Key) -> str:
        whole = (*self.table, *key)
        name = ".".join(map(toml_key, whole))
        place = self.layer.place(key)
        prefix = f"{place}: " if place else ""
        if complaint.startswith("Object contains unknown field"):
            value = _at(self.layer.data, key)
            only = (*key, *value) if isinstance(value, dict) and len(value) == 1 else key
            names = self._known_names(key[:-1])
            near = closest(key[-1], names)
            is_typo = difflib.SequenceMatcher(a=key[-1], b=near).ratio() >= TYPO
            hint = nearest(key[-1], names) if is_typo else self._same_name_elsewhere(only) or nearest(key[-1], names)
            return f"{prefix}`{name}` is not a setting{self._of_which(key[:-1])}; {hint}"
        if complaint.startswith("Object missing required field"):
            at_top = "at the top; or, if this file overrides another recipe, name that one first"
            where = f"under `[{'.'.join(map(toml_key, whole[:-1]))}]`" if len(whole) > 1 else at_top
            is_table = _struct(_type_at(self.kind, key, self.layer.data), None) is not None
            line = f"a table `[{name}]`" if is_table else f"`{toml_key(key[-1])} = …`"
            return f"{prefix}`{name}` is missing; write {line} {where}"
        return (
            f"{prefix}`{name}`: found {toml_value(_at(self.layer.data, key))}, expected"
            f" {self._expected_text(complaint, key)}"
        )

    def _of_which(self, table: Key) -> str:
        tag = _tag_of(_struct(_type_at(self.kind, table, self.layer.data), _at(self.layer.data, table)))
        return f' of {tag[0]} = "{tag[1]}"' if tag else ""

    def _same_name_elsewhere(self, key: Key) -> str:
        """Returns a hint with the settings of this name in other tables, and the tags that a table needs for them."""
        tables: dict[str, list[str]] = {}
        for path, owner in _tables_with(inspect.type_info(self.kind), key[-1]):
            tag = _tag_of(owner)
            tables.setdefault(".".join(map(toml_key, (*self.table, *path, key[-1]))), []).extend(
                [f'"{tag[1]}"'] if tag else []
            )
        whole = ".".join(map(toml_key, (*self.table, *key)))
        near = {name: tags for name, tags in tables.items() if name.startswith(f"{(*self.table, *key)[0]}.")}
        if tags := tables.pop(whole, []):
            return f"it is one where `name` is {' or '.join(tags)}"
        return (
            f"did you mean {' or '.join(f'`{name}`' for name in near or tables)}?"
            if 0 < len(near or tables) <= MOST_HINTS
            else ""
        )

    def _known_names(self, table: Key) -> list[str]:
        struct = _struct(_type_at(self.kind, table, self.layer.data), _at(self.layer.data, table))
        if struct is None:
            return []
        tag = _tag_of(struct)
        return [
            *([tag[0]] if tag else []),
            *(field.encode_name for field in struct.fields),
            *(self.directives if not table else ()),
        ]

    def _expected_text(self, complaint: str, key: Key) -> str:
        if complaint.startswith(("Invalid enum value", "Invalid value")):
            value, choices = str(_at(self.layer.data, key)), list(_choices(self.kind, key, self.layer.data))
            near = closest(value, choices)
            return f"one of {', '.join(map(toml_value, choices))}" + (
                f"; did you mean {toml_value(near)}?" if near else ""
            )
        expected = re.sub(r", got `[^`]*`$", "", complaint.removeprefix("Expected "))
        expected = re.sub(
            r"`(.+?)`",
            lambda found: " or ".join(_TYPES.get(part, part) for part in found[1].split(" | ")),
            expected,
            count=1,
        )
        return re.sub(r"matching regex '(.*)'", lambda found: f"of {PATTERNS.get(found[1], found[0])}", expected)


def _tables_with(kind: inspect.Type, name: str, path: Key = ()) -> Iterator[tuple[Key, inspect.StructType]]:
    """Yields the tables that have a setting of this name, with the key of each."""
    for struct in _structs(kind):
        for field in struct.fields:
            if field.encode_name == name:
                yield path, struct
            yield from _tables_with(field.type, name, (*path, field.encode_name))


def _fault(data: Any, kind: type[Any], error: str) -> tuple[str, Key]:
    """Returns the message without its path, and the key that it is about."""
    complaint, _, path = error.partition(" - at `")
    path = path.removesuffix("`").removeprefix("key in ")
    key: Key = ()
    for step in re.findall(r"\.([^.\[]+)|\[(\d+)\]|\[(\.\.\.)\]", path):
        key = (*key, step[0] or step[1] or _entry(data, kind, key, error))
    if named := re.match(r"Object (?:contains unknown|missing required) field `(.+)`", complaint):
        key = (*key, named[1])
    return complaint, key


def _entry(data: Any, kind: type[Any], table: Key, error: str) -> str:
    """Returns the invalid entry of a table with free names, which msgspec does not report."""
    names: list[str] = list(_at(data, table))
    for name in names:
        alone = deepcopy(data)
        around = _at(alone, table)
        for other in names:
            if other != name:
                del around[other]
        try:
            msgspec.convert(alone, kind)
        except msgspec.ValidationError as same:
            if str(same) == error:
                return name
    return names[0]


def _at(data: Any, key: Key) -> Any:
    for step in key:
        if isinstance(data, list):
            data = data[int(step)]
        elif isinstance(data, dict):
            data = data.get(step)
        else:
            return None
    return data


def _was_removed(data: dict[str, Any], key: Key) -> bool:
    around = _at(data, key[:-1])
    return isinstance(around, dict) and key[-1] in around


def _remove(data: dict[str, Any], key: Key) -> bool:
    """Remove an invalid setting, or the list of an invalid entry; returns False if there is nothing to remove."""
    while key and not isinstance(_at(data, key[:-1]), dict):
        key = key[:-1]
    return bool(key) and _at(data, key[:-1]).pop(key[-1], None) is not None


def _type_at(kind: type[Any], key: Key, data: Any) -> inspect.Type:
    """Returns the type of the setting at `key`; the data selects the member of a tagged union."""
    kind_at: inspect.Type = inspect.type_info(kind)
    for depth, step in enumerate(key):
        struct = _struct(kind_at, _at(data, key[:depth]))
        if struct is not None:
            kind_at = next((field.type for field in struct.fields if field.encode_name == step), inspect.AnyType())
        elif isinstance(kind_at, inspect.DictType):
            kind_at = kind_at.value_type
        else:
            kind_at = getattr(kind_at, "item_type", inspect.AnyType())
    return kind_at


def _struct(kind: inspect.Type, value: Any) -> inspect.StructType | None:
    structs = list(_structs(kind))
    for struct in structs:
        if isinstance(value, dict) and struct.tag_field in value and value[struct.tag_field] == struct.tag:
            return struct
    return structs[0] if len(structs) == 1 else None


def _structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    yield from (member for member in _members(kind) if isinstance(member, inspect.StructType))


def _members(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _tag_of(struct: inspect.StructType | None) -> tuple[str, str] | None:
    return (struct.tag_field, str(struct.tag)) if struct is not None and struct.tag_field else None


def _choices(kind: type[Any], key: Key, data: Any) -> Iterator[str]:
    """Yields the valid values of a literal or a tag."""
    for member in _members(_type_at(kind, key, data)):
        if isinstance(member, inspect.LiteralType):
            yield from map(str, member.values)
    for struct in _structs(_type_at(kind, key[:-1], data)):
        if struct.tag_field == key[-1]:
            yield str(struct.tag)
