"""Numbers of episodes and attempts, from a history."""

from __future__ import annotations

from collections import Counter

from areal_actors.history.database import History
from areal_actors.messages.episode_ends import EpisodeCounts, model_deed


def count_episodes(history: History) -> EpisodeCounts:
    """Returns the numbers of episodes and attempts of a run; its sets of names are empty."""
    ended = history.query(
        "SELECT outcome, reason, attempts_left > 0, count(*) FROM attempt WHERE ended IS NOT NULL GROUP BY 1, 2, 3"
    )
    by_outcome, last_by_outcome, reasons = Counter[str](), Counter[str](), Counter[str]()
    for outcome, reason, goes_on, count in ended:
        by_outcome[outcome] += count
        last_by_outcome[outcome] += 0 if goes_on else count
        if outcome == "abandoned":
            reasons[reason] += count
    deeds = Counter[str]()
    for cause, count in history.query(
        "SELECT end_cause, count(*) FROM attempt WHERE outcome = 'exported' AND ended_by = 'model' GROUP BY 1"
    ):
        deeds[model_deed(cause)] += count
    return EpisodeCounts(
        episodes=last_by_outcome.total(),
        exported=by_outcome["exported"],
        evaluated=by_outcome["evaluated"],
        abandoned=dict(reasons),
        given_up=last_by_outcome["abandoned"],
        rejected=by_outcome["rejected"],
        rejected_episodes=last_by_outcome["rejected"],
        surplus_running=by_outcome["surplus"],
        dropped=dict(history.query("SELECT drop_reason, count(*) FROM attempt WHERE dropped IS NOT NULL GROUP BY 1")),
        model_ends=dict(deeds),
        repeated=history.progress.repeated_ends,
    )
