"""Held-out tasks, run with the present weights: measured and never trained."""

from __future__ import annotations

from areal_actors.actors.evaluator import SOLVED_FROM
from areal_actors.messages import EpisodeAbandoned, EpisodeEvaluated
from areal_actors.values import Value


class Evaluation(Value):
    """What became of each task."""

    weight_version: int
    """The newest when it began."""
    results: tuple[EpisodeEvaluated, ...]
    """In the order of the tasks."""
    failed: tuple[EpisodeAbandoned, ...]
    """Tasks without a score, which count in neither direction."""

    @property
    def accuracy(self) -> float:
        """Share of results with a reward of at least 0.5; 0 without results."""
        return sum(result.reward >= SOLVED_FROM for result in self.results) / max(len(self.results), 1)

    @property
    def mean_reward(self) -> float:
        """Over the results; 0 without any."""
        return sum(result.reward for result in self.results) / max(len(self.results), 1)
