"""Completed model calls on their way to the log: an exported trajectory has its own, others are reported together, once a second.

They are for monitors, and hold no tokens: no answer waits until they are durable, and a call costs no message of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from areal_actors.gateway.sessions.episode_end import Ending
from areal_actors.messages import InteractionRecorded, InteractionsRecorded, TrajectoryExported

EndingEvent = Ending | InteractionsRecorded

REPORTED_TOGETHER = 256
"""Maximum number of calls in one event."""


class UnreportedCalls:
    """Calls that no event has, by session."""

    def __init__(self) -> None:
        self._calls: dict[str, list[InteractionRecorded]] = {}

    def add(self, call: InteractionRecorded) -> None:
        """Keep a call."""
        self._calls.setdefault(call.session, []).append(call)

    def with_end(self, session: str, ending: Ending) -> Iterator[EndingEvent]:
        """Yields the end of a session's episode with its calls, or after them if it is no trajectory."""
        if isinstance(ending, TrajectoryExported):
            yield msgspec.structs.replace(ending, recorded=tuple(self._calls.pop(session, ())))
            return
        yield from self.of(session)
        yield ending

    def of(self, session: str) -> Iterator[InteractionsRecorded]:
        """Yields the calls of a session."""
        yield from _together(self._calls.pop(session, []))

    def all(self) -> Iterator[InteractionsRecorded]:
        """Yields the calls of all sessions, each session's in their order."""
        calls, self._calls = self._calls, {}
        yield from _together([call for of_session in calls.values() for call in of_session])


def _together(calls: list[InteractionRecorded]) -> Iterator[InteractionsRecorded]:
    for start in range(0, len(calls), REPORTED_TOGETHER):
        yield InteractionsRecorded(recorded=tuple(calls[start : start + REPORTED_TOGETHER]))
