"""Rehearsal: rows of an earlier run beside those of the served sessions, so that what it had learned is not forgotten.

The newest rows are taken, since their log-probabilities are those of weights near the ones that learn.
"""

from __future__ import annotations

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.learn.recorded_calls import RecordedSessions, read_sessions
from areal_actors.reader.run import Run


class Rehearsal(msgspec.Struct, frozen=True):
    """Rows of an earlier run, and the sentence about them."""

    read: RecordedSessions
    sentence: str


def read_rehearsal(run: Run, *, rows: int, share: float) -> Rehearsal:
    """Returns the newest judged rows of a run.

    Args:
        run: a training run or a served model, with its folder.
        rows: rows of the sessions that they are mixed with.
        share: of the rehearsed rows among all.

    Raises:
        SetupError: it has no rewarded rows.
    """
    read = read_sessions(run, since=0.0)
    if not read.rows:
        raise SetupError(f"--rehearse: '{run.name}' has no rewarded episodes or judged sessions; name a run that has")
    asked = max(1, round(rows * share / (1.0 - share)))
    newest = _take_newest(read, asked, run.name)
    missing = f"; {asked} would be a share of {share:g}" if len(newest.rows) < asked else ""
    mixed = len(newest.rows) / (rows + len(newest.rows))
    return Rehearsal(
        newest, f"rehearsal: the newest {len(newest.rows)} rows of {run.name}, {mixed:.1%} of all{missing}"
    )


def _take_newest(read: RecordedSessions, count: int, source: str) -> RecordedSessions:
    """Returns the last rows, whole sessions only, with their source."""
    first = max(0, len(read.rows) - count)
    while first and read.rows[first - 1].session == read.rows[first].session:
        first -= 1
    return RecordedSessions(
        rows=[msgspec.structs.replace(row, source=source) for row in read.rows[first:]],
        calls=[msgspec.structs.replace(call, row=call.row - first) for call in read.calls if call.row >= first],
    )
