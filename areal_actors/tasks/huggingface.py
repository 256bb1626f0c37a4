"""Rows of the `datasets` library: from the Hugging Face hub, `save_to_disk` folders and parquet files.

The library memory-maps Arrow tables, so that large datasets take little memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from areal_actors.core.errors import SetupError
from areal_actors.tasks.rows import DatasetRows, check_texts

NEEDED = "pip install 'areal-actors[data]' (in a clone: .venv/bin/pip install -e '.[data]')"
READ_AT_ONCE = 1000


class TableRows:
    """Rows of one split."""

    def __init__(self, table: Any, name: str) -> None:
        self.table = table
        self.name = name

    def __len__(self) -> int:
        return len(self.table)

    def row(self, number: int) -> dict[str, Any]:
        """See `DatasetRows`."""
        return dict(self.table[number])

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `DatasetRows`; errors name the row number, counted from 0."""
        if len(self.table) and set(fields) - set(self.table.column_names):
            check_texts(self.table[0], fields, f"{self.name}, row 0")
        for start in range(0, len(self.table), READ_AT_ONCE):
            columns = self.table.select_columns(list(fields))[start : start + READ_AT_ONCE]
            for number, texts in enumerate(zip(*(columns[field] for field in fields), strict=True), start):
                yield check_texts(dict(zip(fields, texts, strict=True)), fields, f"{self.name}, row {number}")


def library(what: str, otherwise: str = "") -> ModuleType:
    """Returns the `datasets` library.

    Raises:
        SetupError: it is not installed; the message names `what` needs it.
    """
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise SetupError(f"{what} needs the `datasets` library: {NEEDED}{otherwise}") from error


@contextmanager
def _hub(name: str, otherwise: str = "") -> Iterator[ModuleType]:
    datasets = library(name, otherwise)
    try:
        yield datasets
    except Exception as error:
        problem = (
            f"{name} cannot be loaded ({type(error).__name__}: {error}); check the connection to the Hugging Face hub"
            " and the name"
        )
        raise SetupError(problem + otherwise) from error


def from_hub(name: str, config: str, split: str, otherwise: str = "") -> DatasetRows:
    """Returns a split of a dataset on the hub, downloaded once and cached.

    Raises:
        SetupError: it is neither cached nor reachable, or has no such configuration or split.
    """
    with _hub(name, otherwise) as datasets:
        return TableRows(datasets.load_dataset(name, config or None, split=split), f"{name}, {split}")


def splits_on_hub(name: str, config: str) -> list[str]:
    """Returns the splits of a dataset on the hub.

    Raises:
        SetupError: see `from_hub`.
    """
    with _hub(name) as datasets:
        return list(datasets.get_dataset_split_names(name, config or None))


def load_saved(folder: Path) -> Mapping[str, DatasetRows]:
    """Returns the splits of a `save_to_disk` folder; a dataset without splits is `train`.

    Raises:
        SetupError: it cannot be read.
    """
    datasets = library(str(folder))
    try:
        loaded: Any = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise SetupError(
            f"{folder}: cannot be read as a saved dataset ({type(error).__name__}: {error}); save it again"
        ) from error
    tables = dict(loaded) if hasattr(loaded, "keys") else {"train": loaded}
    return {split: TableRows(table, f"{folder}, {split}") for split, table in tables.items()}


def load_parquet(path: Path) -> DatasetRows:
    """Returns the rows of a parquet file.

    Raises:
        SetupError: it cannot be read.
    """
    datasets = library(str(path))
    try:
        return TableRows(datasets.Dataset.from_parquet(str(path)), str(path))
    except Exception as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise SetupError(f"{path}: cannot be read as parquet ({reason}); write it again") from error
