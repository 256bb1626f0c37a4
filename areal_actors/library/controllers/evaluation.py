"""Results of an evaluation on held-out tasks, which are never trained."""

from __future__ import annotations

from areal_actors.core.values import Value
from areal_actors.evaluation.evaluator import SOLVED_FROM
from areal_actors.messages import EpisodeAbandoned, EpisodeEvaluated


class Evaluation(Value):
    """Outcome of each task."""

    weight_version: int
    """Newest weight version when it began."""
    results: tuple[EpisodeEvaluated, ...]
    """Results in the order of the tasks."""
    failed: tuple[EpisodeAbandoned, ...]
    """Tasks without a score, which are not counted."""

    @property
    def accuracy(self) -> float:
        """Share of results with a reward of at least 0.5; 0 without results."""
        return sum(result.reward >= SOLVED_FROM for result in self.results) / max(len(self.results), 1)

    @property
    def mean_reward(self) -> float:
        """Mean reward of the results; 0 without results."""
        return sum(result.reward for result in self.results) / max(len(self.results), 1)
