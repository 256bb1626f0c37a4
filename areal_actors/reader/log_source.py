"""Sources of whole events of a run: an exported log, or the log of a run's folder, which is opened only then."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from areal_actors.core.lazy import LazyModule
from areal_actors.display.run_state import RunState
from areal_actors.folder.run_folder import RunFolder
from areal_actors.history.database import History
from areal_bus.base import Envelope
from areal_bus.errors import BusError
from areal_bus.recorded import read_log

log_events: Any = LazyModule("areal_actors.reader.log_events")

OF_EPISODES = """
WITH these AS (SELECT * FROM attempt WHERE episode IN (SELECT value FROM json_each(?)))
SELECT granted FROM these UNION SELECT scored FROM these UNION SELECT ended FROM these UNION SELECT dropped FROM these
UNION SELECT conversation FROM these
UNION SELECT batch FROM these UNION SELECT recorded FROM call WHERE attempt_id IN (SELECT id FROM these)
UNION SELECT position FROM notice WHERE kind IN ('run.started', 'run.resumed', 'batch.refused')
"""


class FileLog:
    """An exported log."""

    def __init__(self, path: Path, last: int) -> None:
        self._path, self._last = path, last

    def read_all(self) -> list[Envelope]:
        """Returns the events before any damage."""
        envelopes: list[Envelope] = []
        try:
            for envelope in read_log(self._path):
                if envelope.sequence > self._last:
                    break
                envelopes.append(envelope)
        except BusError:
            pass  # the history has the notice
        return envelopes

    def read_some(self, positions: Collection[int]) -> list[Envelope]:
        """Returns the events at these positions."""
        return [envelope for envelope in self.read_all() if envelope.sequence in positions]

    def restore(self, _: RunState) -> int:
        """A file has no snapshots: nothing is restored."""
        return 0


class FolderLog:
    """The log of a run's folder."""

    def __init__(self, place: RunFolder, last: int) -> None:
        self._place, self._last = place, last

    def read_all(self) -> list[Envelope]:
        """Returns the events that the run had when it was opened."""
        envelopes: list[Envelope] = log_events.read_all(self._place, self._last)
        return envelopes

    def read_some(self, positions: Collection[int]) -> list[Envelope]:
        """Returns the events at these positions."""
        envelopes: list[Envelope] = log_events.read_some(self._place, positions)
        return envelopes

    def restore(self, state: RunState) -> int:
        """Restore the state before the first event of a log with a trimmed beginning."""
        position: int = log_events.restore_state(self._place, state)
        return position


def positions_of(history: History, episodes: Collection[str]) -> set[int]:
    """Returns the positions of the events of some episodes, with what explains them."""
    names = json.dumps(list(episodes))
    return {position for position in history.query(OF_EPISODES, names) if position is not None}


def trimmed_sentence(state: RunState, first: int) -> str:
    """Returns a notice about a log whose beginning was trimmed; empty for a whole one."""
    begins = max(first, state.trimmed.first if state.trimmed is not None else 1)
    if begins == 1:
        return ""
    when = state.trimmed.occasion() if state.trimmed is not None else ""
    missing = (
        "" if state.started is not None else ", and no snapshot of the run was found: totals count only what came after"
    )
    return f"the log begins at event {begins:,}; earlier events were trimmed{when}{missing}"
