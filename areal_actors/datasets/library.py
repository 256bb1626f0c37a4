"""Rows through the `datasets` library: from the Hugging Face hub, from a folder that it has saved, from parquet files.

It keeps them on disk as Arrow tables and maps those into memory, so that a large dataset costs little of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from areal_actors.datasets.rows import Rows, checked
from areal_actors.errors import SetupError

NEEDED = "pip install 'areal-actors[data]' (in a clone: .venv/bin/pip install -e '.[data]')"
READ_AT_ONCE = 1000


class TableRows:
    """The rows of one split."""

    def __init__(self, table: Any, name: str) -> None:
        self.table = table
        self.name = name

    def __len__(self) -> int:
        return len(self.table)

    def row(self, number: int) -> dict[str, Any]:
        """See `Rows`."""
        return dict(self.table[number])

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `Rows`; a row is named by its number, counted from 0."""
        if len(self.table) and set(fields) - set(self.table.column_names):
            checked(self.table[0], fields, f"{self.name}, row 0")
        for start in range(0, len(self.table), READ_AT_ONCE):
            columns = self.table.select_columns(list(fields))[start : start + READ_AT_ONCE]
            for number, texts in enumerate(zip(*(columns[field] for field in fields), strict=True), start):
                yield checked(dict(zip(fields, texts, strict=True)), fields, f"{self.name}, row {number}")


def library(what: str, otherwise: str = "") -> ModuleType:
    """The `datasets` library.

    Raises:
        SetupError: it is not installed; says that `what` needs it.
    """
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise SetupError(f"{what} needs the `datasets` library: {NEEDED}{otherwise}") from error


def from_hub(name: str, config: str, split: str, otherwise: str = "") -> Rows:
    """A split of a dataset on the hub, which is downloaded once and kept.

    Raises:
        SetupError: it is neither cached nor reachable, or has no such configuration or split.
    """
    datasets = library(name, otherwise)
    try:
        return TableRows(datasets.load_dataset(name, config or None, split=split), f"{name}, {split}")
    except Exception as error:
        problem = f"{name} cannot be had ({type(error).__name__}: {error}); is the Hugging Face hub reachable, and is it called so?"
        raise SetupError(problem + otherwise) from error


def splits_on_hub(name: str, config: str) -> list[str]:
    """The splits of a dataset on the hub.

    Raises:
        SetupError: as `from_hub`.
    """
    datasets = library(name)
    try:
        return list(datasets.get_dataset_split_names(name, config or None))
    except Exception as error:
        raise SetupError(
            f"{name} cannot be had ({type(error).__name__}: {error}); is the Hugging Face hub reachable, and is it called so?"
        ) from error


def saved(folder: Path) -> Mapping[str, Rows]:
    """The splits of what `save_to_disk` wrote; a dataset without splits is called `train`.

    Raises:
        SetupError: it cannot be read.
    """
    datasets = library(str(folder))
    try:
        found: Any = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise SetupError(f"{folder}: cannot be read as a saved dataset ({type(error).__name__}: {error}); save it again") from error
    tables = dict(found) if hasattr(found, "keys") else {"train": found}
    return {split: TableRows(table, f"{folder}, {split}") for split, table in tables.items()}


def parquet(path: Path) -> Rows:
    """The rows of a parquet file.

    Raises:
        SetupError: it cannot be read.
    """
    datasets = library(str(path))
    try:
        return TableRows(datasets.Dataset.from_parquet(str(path)), str(path))
    except Exception as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise SetupError(f"{path}: cannot be read as parquet ({reason}); write it again") from error
