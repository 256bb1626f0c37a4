"""Settings as files and overrides state them, with the place of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from areal_actors.core.config import merge_tables

Key = tuple[str, ...]
"""`("trainer", "optimizer", "lr")`."""


class Layer(msgspec.Struct, frozen=True):
    """Settings, with the file and line of each."""

    data: dict[str, Any]
    places: dict[Key, str]
    """File and line (`recipe.toml:17`) of each key; the files under the empty key."""

    def over(self, below: Layer) -> Layer:
        """Returns these settings merged over those of `below`."""
        files = [layer.places[()] for layer in (below, self) if () in layer.places]
        places = below.places | self.places
        if files:
            places[()] = " + ".join(files)
        return Layer(merge_tables(below.data, self.data), places)

    def within(self, *table: str) -> Layer:
        """Returns the settings of one table as top-level settings."""
        data: Any = self.data
        for name in table:
            data = data.get(name, {})
        depth = len(table)
        places = {key[depth:]: place for key, place in self.places.items() if key[:depth] == table and len(key) > depth}
        return Layer(data, places)

    def without(self, *names: str) -> Layer:
        """Returns the layer without these top-level keys."""
        return Layer({name: value for name, value in self.data.items() if name not in names}, self.places)

    def without_setting(self, key: Key) -> Layer:
        """Returns the layer without one setting, at any depth."""
        name, *rest = key
        if not isinstance(below := self.data.get(name), dict) or not rest:
            return self.without(name)
        inner = Layer(below, {}).without_setting(tuple(rest)).data
        return Layer({**self.data, name: inner}, self.places)

    def place(self, key: Key) -> str:
        """Returns the place of a key, or else of the nearest table around it, or else the files."""
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key, "")


def is_stated(stated: Mapping[str, Any], key: Key) -> bool:
    """Returns True if these settings hold the key."""
    table: Any = stated
    for name in key:
        if not isinstance(table, Mapping) or name not in table:
            return False
        table = table[name]
    return True
