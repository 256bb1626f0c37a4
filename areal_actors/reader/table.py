"""A table of a run: named columns, as Python rows, pandas, Arrow or a Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from areal_actors.core.errors import SetupError


class Table:
    """Columns of equal length; a missing value is None."""

    def __init__(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        self.name = name
        self.columns = dict(columns)

    @classmethod
    def of(cls, name: str, fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
        """Returns a table of rows.

        The named columns come first, which also an empty table has, then others in order of appearance.
        """
        listed = list(rows)
        names = dict.fromkeys([*fields, *(key for row in listed for key in row)])
        return cls(name, {key: [row.get(key) for row in listed] for key in names})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def __getitem__(self, column: str) -> Sequence[Any]:
        if column not in self.columns:
            raise KeyError(f"{self.name} has no column '{column}'; its columns: {', '.join(self.columns)}")
        return self.columns[column]

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self):,} rows; columns {', '.join(self.columns)}>"

    def arrow(self) -> Any:
        """Returns a `pyarrow.Table`.

        Raises:
            SetupError: pyarrow is not installed.
        """
        return _library("pyarrow").table(self.columns)

    def pandas(self) -> Any:
        """Returns a `pandas.DataFrame`.

        Raises:
            SetupError: pandas is not installed.
        """
        return _library("pandas").DataFrame(self.columns)

    def parquet(self, path: str | Path) -> Path:
        """Write a Parquet file, as DuckDB and others read it; returns its path.

        Raises:
            SetupError: pyarrow is not installed.
            OSError: it cannot be written.
        """
        _library("pyarrow.parquet").write_table(self.arrow(), str(path))
        return Path(path)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise SetupError(
            f"{name.partition('.')[0]} is not installed; install it with `pip install 'areal-actors[reader]'`"
        ) from None
