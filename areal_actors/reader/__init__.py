"""Reads runs, live, finished or exported: as tables for pandas, Arrow and Parquet, and on the command line."""

from areal_actors.reader.run import Run, open_run
from areal_actors.reader.table import Table

__all__ = ["Run", "Table", "open_run"]
