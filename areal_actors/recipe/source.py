"""Merges the settings of TOML files and overrides, with the file and line of each key.

TOML parsers drop line numbers, which error messages need. So every file is read twice: by `tomllib` for its values,
and here for the line of every key, including dotted keys and inline tables.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_actors.core.errors import RecipeError
from areal_actors.core.layers import Key, Layer
from areal_actors.recipe.paths import beside, expand_home, missing_recipe

LARGEST = 2**63 - 1


def read_file(path: Path) -> Layer:
    """Read one recipe file; relative paths in it that exist beside it are returned as seen from the current directory.

    Raises:
        RecipeError: it is missing, or not TOML; the message has the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file; {missing_recipe(path)}") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}; name a TOML file") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: is not UTF-8 text (byte {error.start}); a recipe is a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        complaint, _, position = str(error).partition(" (at ")
        match = re.match(r"line (\d+), column (\d+)", position)
        line = int(match[1]) if match else text.count("\n") + 1
        column = f" at column {match[2]}" if match else ""
        hint = _toml_hint(text.splitlines()[line - 1] if match else "")
        raise RecipeError(
            f"{path}:{line}: not valid TOML{column}: {complaint[0].lower()}{complaint[1:]}; {hint}"
        ) from None
    places = {(): str(path), **{key: f"{path}:{line}" for key, line in key_lines(text).items()}}
    _refuse_large(data, places)
    return Layer(beside(expand_home(data), path.parent), places)


def _refuse_large(value: Any, places: Mapping[Key, str], key: Key = ()) -> None:
    """Refuse infinities and NaN, and integers of more than 64 bits, which TOML excludes, but `tomllib` reads."""
    if isinstance(value, dict):
        for name, entry in value.items():
            _refuse_large(entry, places, (*key, name))
    elif isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"{places.get(key, '')}: `{'.'.join(key)}`: found {value}, expected a finite number")
    elif isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        raise RecipeError(
            f"{places.get(key, '')}: `{'.'.join(key)}`: found {value:.0e}, expected a whole number below 2**63"
        )


def _toml_hint(line: str) -> str:
    if re.match(r"\s*[\w.\"'-]+\s*=\s*[A-Za-z_/.]", line):
        return 'write text in double quotes, as in `model = "embedded"`'
    if re.match(r"\s*[\w.-]+\s*:", line):
        return "TOML writes `key = value`"
    return "a line is `key = value`, `[table]` or `# comment`, and a key occurs once"


def read_override(text: str) -> Layer:
    """Parse an override such as `staleness_gate.max_staleness=4`: the value is TOML or a bare word.

    Raises:
        RecipeError: there is no key or no `=`.
    """
    name, equals, written = text.partition("=")
    key = tuple(part.strip().strip('"') for part in _KEY_PART.findall(name))
    if not equals or not all(key):
        raise RecipeError(
            f"override `{text}`: found no setting in it; write `table.key=value`, as in `algorithm.group_size=4`"
        )
    try:
        value = tomllib.loads(f"value = {written.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = written.strip()
    data: dict[str, Any] = {key[-1]: expand_home(value)}
    for part in reversed(key[:-1]):
        data = {part: data}
    places = {key[:depth]: f"override `{text}`" for depth in range(1, len(key) + 1)}
    _refuse_large(data, places)
    return Layer(data, places)


_KEY_PART = re.compile(r'(?:"[^"]*"|[^."])+|(?<=\.)(?=\.|$)|^(?=\.|$)')
"""A part of a dotted key: what stands between dots, which are no separators within quotes; or nothing."""
_TOKEN = re.compile(
    r'(?P<string>"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*')"
    r"|(?P<mark>[\[\]{}=,.\n])"
    r"|(?P<bare>[^\s\[\]{}=,.#\"']+)"
    r"|(?:#[^\n]*|[ \t\r]+)",
    re.DOTALL,
)


def key_lines(text: str) -> dict[Key, int]:
    """Returns the first line of each key and table of a valid TOML text."""
    return _Keys(text).lines


class _Keys:
    """One walk over the tokens of a TOML text; `text` is known to be valid."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, int]] = []
        line = 1
        for match in _TOKEN.finditer(text):
            if match["string"] or match["mark"] or match["bare"]:
                self.tokens.append((match[0], line))
            line += match[0].count("\n")
        self.position = 0
        self.entries: dict[Key, int] = {}
        """Number of tables of each `[[array]]` so far."""
        self.lines: dict[Key, int] = {}
        self._walk()

    def _walk(self) -> None:
        table: Key = ()
        while self.position < len(self.tokens):
            if self._next() == "[":
                line = self.tokens[self.position][1]
                is_entry = self._skip("[") > 1
                table = self._key(())
                self._skip("]")
                if is_entry:
                    self.entries[table] = self.entries.get(table, -1) + 1
                    table = (*table, str(self.entries[table]))
                    self.lines[table] = line
            elif not self._skip("\n"):
                self._pair(table)

    def _pair(self, table: Key) -> None:
        key = self._key(table)
        self._skip("=")
        self._value(key)

    def _key(self, table: Key) -> Key:
        """Read a dotted key, and note its line and that of each table it names."""
        key = table
        while True:
            token, line = self.tokens[self.position]
            self.position += 1
            key = (*key, _unquote(token))
            self.lines.setdefault(key, line)
            if not self._skip("."):
                return key

    def _value(self, key: Key) -> None:
        if self._next() == "{":
            self.position += 1
            while self._next() != "}":
                if not self._skip("\n", ","):
                    self._pair(key)
            self.position += 1
        elif self._next() == "[":
            self.position += 1
            while self._next() != "]":
                if not self._skip("\n", ","):
                    self._value(key)
            self.position += 1
        else:
            while self._next() not in ("", "\n", ",", "]", "}"):
                self.position += 1

    def _next(self) -> str:
        return self.tokens[self.position][0] if self.position < len(self.tokens) else ""

    def _skip(self, *marks: str) -> int:
        """Skip all of these marks that come next; returns their number."""
        before = self.position
        while self._next() in marks:
            self.position += 1
        return self.position - before


def _unquote(token: str) -> str:
    if token[0] not in "\"'":
        return token
    name: str = tomllib.loads(f"key = {token}")["key"]
    return name
