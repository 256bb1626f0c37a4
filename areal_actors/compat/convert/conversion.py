"""A converted configuration: the tables of a recipe, and one row for each key of the user's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from areal_actors.core.problems import closest, toml_value


class Fate(StrEnum):
    """The fate of a key."""

    CARRIED = "carried over"
    DIFFERS = "differs"
    WITHOUT_EFFECT = "without effect"
    UNKNOWN = "unknown"


class KeyRow(NamedTuple):
    """A key of the user's file."""

    key: str
    value: Any
    fate: Fate
    setting: str = ""
    """Dotted name of the recipe's setting; empty if there is none."""
    remark: str = ""


class Conversion(NamedTuple):
    """A recipe, and the table of the user's own file."""

    system: str
    tables: dict[str, Any]
    rows: tuple[KeyRow, ...]


class KeyRule(NamedTuple):
    """A key with one counterpart."""

    setting: str
    """Dotted name of the recipe's setting; empty if the key has no effect here, for the reason of the remark."""
    value: Callable[[Any], Any] = lambda value: value
    remark: str = ""
    """The difference, where the setting has not quite the same meaning."""


def with_reason(names: str, reason: str, prefix: str = "") -> dict[str, str]:
    """Returns the reason by each of the names, which are separated by spaces."""
    return {f"{prefix}{name}": reason for name in names.split()}


class Converter:
    """Collects settings and rows of a file with dotted keys; a key that nothing reads is unknown."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.tables: dict[str, Any] = {}
        self._rows: dict[str, KeyRow] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key; the default if it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def put(self, setting: str, value: Any) -> None:
        """Write a setting."""
        *tables, name = setting.split(".")
        table = self.tables
        for each in tables:
            table = table.setdefault(each, {})
        table[name] = value

    def carry(self, key: str, setting: str, value: Any, remark: str = "") -> None:
        """Write the setting of a key; with a remark it differs."""
        self.put(setting, value)
        self.note(key, Fate.DIFFERS if remark else Fate.CARRIED, setting, remark)

    def note(self, key: str, fate: Fate, setting: str = "", remark: str = "") -> None:
        """Add the row of a key, if the file has it."""
        if key in self.values:
            self._rows[key] = KeyRow(key, self.values[key], fate, setting, remark)

    def apply(self, rules: Mapping[str, KeyRule]) -> None:
        """Convert every key that has a rule and no row yet; null is left to the recipe's default."""
        for key, rule in rules.items():
            if key not in self.values or key in self._rows:
                continue
            if not rule.setting or self.values[key] is None:
                remark = rule.remark if not rule.setting else "null; the recipe's default"
                self.note(key, Fate.WITHOUT_EFFECT, rule.setting, remark)
            else:
                self.carry(key, rule.setting, rule.value(self.values[key]), rule.remark)

    def ignore(self, reasons: Mapping[str, str]) -> None:
        """Note the keys that begin with one of these names, each with its reason."""
        for key in self.values:
            start = next((name for name in reasons if key == name or key.startswith(f"{name}.")), None)
            if start is not None and key not in self._rows:
                self.note(key, Fate.WITHOUT_EFFECT, "", reasons[start])

    def rows(self, known: Sequence[str]) -> tuple[KeyRow, ...]:
        """Returns the rows in the order of the file; a key without one is unknown, with the closest known one."""
        return tuple(self._rows.get(key) or self._unknown(key, known) for key in self.values)

    def _unknown(self, key: str, known: Sequence[str]) -> KeyRow:
        near = closest(key, known)
        remark = f"did you mean `{near}`?" if near else "not read; see docs/coming-from.md"
        return KeyRow(key, self.values[key], Fate.UNKNOWN, "", remark)


def describe(conversion: Conversion) -> str:
    """Returns the rows as a table of Markdown, under the numbers of each fate."""
    counts = {fate: sum(row.fate is fate for row in conversion.rows) for fate in Fate}
    head = ", ".join(f"{count} {fate}" for fate, count in counts.items())
    lines = [f"{conversion.system}: {len(conversion.rows)} keys: {head}", ""]
    lines += ["| key | value | | setting | remark |", "|---|---|---|---|---|"]
    for row in conversion.rows:
        cells = (
            f"`{row.key}`",
            f"`{_shorten(row.value)}`",
            row.fate,
            f"`{row.setting}`" if row.setting else "",
            row.remark,
        )
        escaped = " | ".join(cell.replace("|", "\\|") for cell in cells)
        lines.append(f"| {escaped} |")
    return "\n".join(lines) + "\n"


def _shorten(value: Any, longest: int = 60) -> str:
    text = "null" if value is None else toml_value(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
