"""Rows of a dataset by number, in memory or on disk, read when they are drawn."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Protocol

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.tasks.values import as_text

NAMED_PATHS = 40
"""Columns of a row that an error message names at most."""


class DatasetRows(Protocol):
    """Rows in a fixed order."""

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def row(self, number: int) -> dict[str, Any]:
        """Returns a row by number, counted from 0.

        Raises:
            SetupError: it can no longer be read.
        """
        ...

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yields these fields of every row, in order; each must be a non-empty text.

        Raises:
            SetupError: a field is not; the message has its location, what was found and what to write.
        """
        ...


class ListedRows(msgspec.Struct, frozen=True):
    """Rows in memory."""

    rows: Sequence[Mapping[str, Any]]
    name: str

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> dict[str, Any]:
        """See `DatasetRows`."""
        return dict(self.rows[number])

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `DatasetRows`."""
        for number, row in enumerate(self.rows):
            yield check_texts(row, fields, f"{self.name}, row {number}")


class JoinedRows:
    """Concatenated rows of several files."""

    def __init__(self, parts: Sequence[DatasetRows]) -> None:
        self.parts = parts
        self.ends = array("Q", accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def row(self, number: int) -> dict[str, Any]:
        """See `DatasetRows`."""
        part = bisect_right(self.ends, number)
        return self.parts[part].row(number - (self.ends[part] - len(self.parts[part])))

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `DatasetRows`."""
        for part in self.parts:
            yield from part.texts(fields)


def check_texts(row: object, fields: Sequence[str], place: str) -> tuple[str, ...]:
    """Returns the texts of these fields.

    Raises:
        SetupError: the row is not an object, or a field is missing or not a text; the message begins with `place`.
    """
    wanted = " and ".join(f"`{field}`" for field in fields)
    if not isinstance(row, Mapping):
        raise SetupError(f"{place}: expected an object with {wanted}, got {type(row).__name__}")
    texts: list[str] = []
    for field in fields:
        if field not in row:
            raise SetupError(f"{place}: `{field}` is missing; the row has {list_paths(row)}{_remedy(field, row)}")
        if (text := as_text(row[field])) is None or not text.strip():
            raise SetupError(f"{place}: `{field}` must be a non-empty text, got {row[field]!r:.40}")
        texts.append(text)
    return tuple(texts)


def paths_of(row: Mapping[Any, Any], before: str = "") -> Iterator[str]:
    """Yields the columns of a row, and the paths within those that are objects."""
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            yield from paths_of(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def list_paths(row: Mapping[Any, Any]) -> str:
    """Returns the columns of a row, and the paths in them, for an error message."""
    return field_names(islice(paths_of(row), NAMED_PATHS))


def field_names(fields: Iterable[Any]) -> str:
    """Returns the names of fields for an error message."""
    return ", ".join(f"`{name}`" for name in fields) or "no fields"


def _remedy(field: str, row: Mapping[Any, Any]) -> str:
    """Returns the setting that names another column as this field."""
    if not row:
        return ""
    example = next((path for path in paths_of(row) if "." in path), "…")
    example = f'"{example}"' if example != "…" else example
    return f"; if it is one of these, write `task.columns = {{ {field} = {example} }}`"
