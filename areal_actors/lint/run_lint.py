"""The learning signal of a run's first batch, in sentences."""

from __future__ import annotations

from areal_actors.lint.first_episodes import FirstEpisodes
from areal_actors.lint.rules import findings, to_lines
from areal_actors.messages import StepCompleted
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.credit import Credit
from bus.message import Message


class RunLint:
    """Folds the events of a launch until its first step; then it has the lines once, and folds nothing more."""

    def __init__(self, recipe: Recipe, show: str) -> None:
        """`show` is the command that shows an episode of the run."""
        self._recipe, self._show = recipe, show
        self._facts: FirstEpisodes | None = None if recipe.learns_from_examples() else FirstEpisodes(Credit.of(recipe.task))

    def receive(self, message: Message) -> list[str]:
        """Fold an event; returns the lines after the first step."""
        if self._facts is None:
            return []
        self._facts.receive(message)
        if not isinstance(message, StepCompleted):
            return []
        facts, self._facts = self._facts, None
        return to_lines(findings(facts, self._recipe), self._show)
