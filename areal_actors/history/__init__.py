"""History: a fold of a run's log into the rows of one schema.

They are kept as an SQLite database beside the run, or in memory.
"""

from __future__ import annotations

from areal_actors.history.database import DATABASE, History

__all__ = ["DATABASE", "History"]
