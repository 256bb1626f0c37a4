"""The state of a run from its history.

The same as a fold over all events of its log gives, without answers of evaluations.
"""

from __future__ import annotations

from areal_actors.display.run_state import RunState
from areal_actors.history.counts import count_episodes
from areal_actors.history.database import History
from areal_actors.history.run_events import run_events
from areal_actors.messages import RunStalled

LAST_FAILURE = "SELECT episode || ': ' || detail FROM attempt WHERE outcome = 'abandoned' ORDER BY ended DESC LIMIT 1"
LAST_STEP = "SELECT coalesce(max(completed), 0) FROM step"
DROPPED_SINCE = "SELECT count(*) FROM attempt WHERE dropped > ?"
EXPORTED_SINCE = """
SELECT count(*) FROM attempt AS exported WHERE outcome = 'exported' AND ended > ? AND NOT EXISTS (
    SELECT 1 FROM attempt AS other WHERE other.dropped < exported.ended
    AND other.dropped > (SELECT coalesce(max(completed), 0) FROM step WHERE completed < exported.ended))
"""
"""Exports that are progress: none is where trajectories were dropped since the last step."""


def recorded_state(history: History) -> RunState:
    """Returns the state after the last event of a history. Its counts cannot be continued with further events."""
    state, stalled = RunState(run=history.progress.run), 0
    for position, time, event in run_events(history):
        state.fold(event, time)
        stalled = position if isinstance(event, RunStalled) else stalled
    if state.stalled is not None and history.value(EXPORTED_SINCE, stalled):
        state.stalled = None
    state.now = history.progress.now
    state.episodes = count_episodes(history)
    state.last_failure = history.value(LAST_FAILURE) or ""
    state.discarding = bool(history.value(DROPPED_SINCE, history.value(LAST_STEP)))
    return state
