"""The learning signal of a run's first batch, in sentences."""

from __future__ import annotations

from areal_actors.lint.fault import LearningFault
from areal_actors.lint.first_episodes import FirstEpisodes
from areal_actors.lint.rules import findings, to_lines
from areal_actors.messages import StepCompleted
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.credit import Credit
from areal_bus.message import Message


class RunLint:
    """Folds the events of a launch until its first step, or its end.

    Then it has the lines once, and folds nothing more.
    """

    def __init__(self, recipe: Recipe, show: str) -> None:
        """`show` is the command that shows an episode of the run."""
        self._recipe, self._show = recipe, show
        self._facts: FirstEpisodes | None = (
            None if recipe.learns_from_examples() else FirstEpisodes(Credit.of(recipe.task))
        )
        self.faults: list[LearningFault] = []
        """Findings; empty before the first step."""

    def receive(self, message: Message) -> list[str]:
        """Fold an event; returns the lines after the first step."""
        if self._facts is None:
            return []
        self._facts.receive(message)
        return self.conclude() if isinstance(message, StepCompleted) else []

    def conclude(self) -> list[str]:
        """Returns the lines of a run that ends before its first step; empty if they were returned before."""
        if self._facts is None:
            return []
        self.faults, self._facts = findings(self._facts, self._recipe), None
        return to_lines(self.faults, self._show)
