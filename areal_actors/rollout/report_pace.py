"""The pace of repeated reports of one line: the first at once, later ones together after intervals that double."""

from __future__ import annotations

from dataclasses import dataclass

from areal_actors.messages import EventLoopBlocked
from areal_actors.rollout.blocked import merge_reports

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 60.0
"""Interval between the first report of a line and the second, and the longest between two."""


@dataclass
class _Line:
    """Reports of a line that wait."""

    due: float
    interval: float
    waiting: EventLoopBlocked | None = None


class ReportPace:
    """Holds back the reports of lines that were reported shortly before; their sums keep every second and block."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def add(self, report: EventLoopBlocked, now: float) -> None:
        """Add a report; `now` is monotonic time."""
        line = self._lines.setdefault(report.line, _Line(now, FIRST_SECONDS))
        line.waiting = report if line.waiting is None else merge_reports(line.waiting, report)

    def take_due(self, now: float) -> list[EventLoopBlocked]:
        """Take the reports whose time has come, one per line.

        A line that was not seen for the longest interval is new when it is seen again.
        """
        taken = []
        for name, line in list(self._lines.items()):
            if now < line.due:
                continue
            if line.waiting is not None:
                taken.append(line.waiting)
                line.waiting, line.due = None, now + line.interval
                line.interval = min(2 * line.interval, LONGEST_SECONDS)
            elif now >= line.due + LONGEST_SECONDS:
                del self._lines[name]
        return taken
