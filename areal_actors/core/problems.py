"""Problems of a recipe as checks yield them, and the words of their texts."""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator

from areal_actors.core.layers import Key

Problems = Iterator[tuple[Key, str]]
"""Invalid settings: the key of each, and a text with the value found and the remedy."""


def nearest(word: str, words: Iterable[str]) -> str:
    """Returns a hint with the closest known name."""
    names = {name.rpartition("/")[2]: name for name in words}
    near = closest(word.rpartition("/")[2], names)
    return f"did you mean `{names[near]}`?" if near else f"known: {', '.join(names.values())}"


def closest(word: str, words: Iterable[str]) -> str:
    """Returns the known name closest to a mistyped one, swapped letters before wrong ones; empty if none is close."""
    near = difflib.get_close_matches(word, words, n=3)
    return next((name for name in near if sorted(name) == sorted(word)), next(iter(near), ""))


def is_installed(library: str) -> bool:
    """Returns True if a Python module of this name can be imported."""
    return importlib.util.find_spec(library) is not None


def toml_value(value: object) -> str:
    """Returns a value as one line of TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            inside = ", ".join(f"{toml_key(name)} = {toml_value(entry)}" for name, entry in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case list() | tuple():
            return f"[{', '.join(toml_value(entry) for entry in value)}]"
        case int() | float():
            return repr(value)
        case _:
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """Returns a TOML key, quoted if needed."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)
