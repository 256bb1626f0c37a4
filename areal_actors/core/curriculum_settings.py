"""The table `[task.curriculum]` of a recipe: draws by the measured difficulty of tasks."""

from __future__ import annotations

from areal_actors.core.config import Config, NonNegativeFloat, NonNegativeInt, PositiveInt


class CurriculumSettings(Config):
    """`[task.curriculum]`: tasks are drawn by the success rate of their last group, not once in each epoch.

    A success is an episode with a reward of at least 0.5.
    """

    new: NonNegativeFloat = 1.0
    """Weight of tasks that were not drawn yet."""
    mixed: NonNegativeFloat = 2.0
    """Weight of tasks whose last group had successes and failures, from which group-relative algorithms learn."""
    solved: NonNegativeFloat = 0.25
    """Weight of tasks whose last group had successes only, and that are not retired."""
    unsolved: NonNegativeFloat = 0.5
    """Weight of tasks whose last group had no success, once they may return."""
    retire_after: PositiveInt = 2
    """Groups in a row with successes only after which a task is no longer drawn, unless no other can be."""
    return_after: NonNegativeInt = 200
    """Draws of its source after which a task without a success may be drawn again."""
