"""The headline of the page: the gain on held-out tasks, and the one thing that limits the run."""

from __future__ import annotations

from areal_actors.display.held_out_change import Mode, change_of, describe_missing_gain
from areal_actors.display.limit import limit_of
from areal_actors.display.recorded_state import recorded_state
from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import held_out_scores
from areal_actors.history.database import History

SEEN = "SELECT (SELECT count(*) FROM evaluation) + (SELECT count(*) FROM load_sample) + (SELECT count(*) FROM run)"


class Headline:
    """Sentences that are made again once there is another evaluation, load or launch."""

    def __init__(self) -> None:
        self._seen = -1
        self._sentences: list[str] = []

    def sentences(self, history: History) -> list[str]:
        """Returns the sentences, the most important first; none before the first evaluation and load."""
        seen = history.value(SEEN)
        if seen != self._seen:
            self._seen, self._sentences = seen, _describe(recorded_state(history))
        return self._sentences


def _describe(state: RunState) -> list[str]:
    gains = list[str]()
    modes: tuple[Mode, ...] = ("sampled", "greedy")
    for mode in modes:
        if (change := change_of(state, mode)) is not None:
            name, values = held_out_scores(state.accuracy(mode))
            gains.append(f"held-out {name}, {mode}: {values[0]:.3f} → {values[-1]:.3f} ({change.describe()})")
    limit = limit_of(state)
    limited = [" To change: ".join([limit.sentence, *limit.advice[:1]])] if limit is not None else []
    return [sentence for sentence in (" · ".join(gains), describe_missing_gain(state), *limited) if sentence]
