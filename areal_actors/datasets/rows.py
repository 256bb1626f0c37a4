"""Rows of a dataset by number, wherever they lie: each is read when it is drawn."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

import msgspec

from areal_actors.errors import SetupError


class Rows(Protocol):
    """Rows in a fixed order."""

    def __len__(self) -> int:
        """How many."""
        ...

    def row(self, number: int) -> dict[str, Any]:
        """The row of this number, counted from 0.

        Raises:
            SetupError: it cannot be read any more.
        """
        ...

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """These fields of every row, in order; each must be a text that is not empty.

        Raises:
            SetupError: a row is not so; the message says which, where it is, what was found and what to write.
        """
        ...


class ListedRows(msgspec.Struct, frozen=True):
    """Rows that are in memory."""

    rows: Sequence[Mapping[str, Any]]
    name: str

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> dict[str, Any]:
        """See `Rows`."""
        return dict(self.rows[number])

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `Rows`."""
        for number, row in enumerate(self.rows):
            yield checked(row, fields, f"{self.name}, row {number}")


class JoinedRows:
    """Rows of several files, one after another."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = parts
        self.ends = array("Q", accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def row(self, number: int) -> dict[str, Any]:
        """See `Rows`."""
        part = bisect_right(self.ends, number)
        return self.parts[part].row(number - (self.ends[part] - len(self.parts[part])))

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `Rows`."""
        for part in self.parts:
            yield from part.texts(fields)


def checked(row: object, fields: Sequence[str], place: str) -> tuple[str, ...]:
    """The texts of these fields.

    Raises:
        SetupError: the row is no object, or a field is missing or no text; the message begins with `place`.
    """
    wanted = " and ".join(f"`{field}`" for field in fields)
    if not isinstance(row, Mapping):
        raise SetupError(f"{place}: expected an object with {wanted}, got {type(row).__name__}")
    texts: list[str] = []
    for field in fields:
        if field not in row:
            raise SetupError(f"{place}: `{field}` is missing; the row has {_names(row)}{_remedy(field, row)}")
        if not isinstance(text := row[field], str) or not text.strip():
            raise SetupError(f"{place}: `{field}` must be a text that is not empty, got {text!r:.40}")
        texts.append(text)
    return tuple(texts)


def _names(fields: Iterable[Any]) -> str:
    return ", ".join(f"`{name}`" for name in fields) or "no fields"


def _remedy(field: str, row: Mapping[Any, Any]) -> str:
    return f"; if it is one of these, write `task.columns = {{ {field} = … }}`" if row else ""
