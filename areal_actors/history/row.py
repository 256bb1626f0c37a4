"""A row of a run's history, and what is common to its tables."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class HistoryRow(msgspec.Struct, kw_only=True, gc=False):
    """A row of a table; its fields are the columns, in order."""

    table: ClassVar[str]
    key: ClassVar[str]
    """Columns of the primary key."""
    indexes: ClassVar[tuple[str, ...]] = ()
    """Columns with an index."""
