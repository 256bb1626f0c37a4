"""The table `[autoscale]` of a recipe: bounds within which the number of workers follows the load of the run."""

from __future__ import annotations

from areal_actors.core.config import Config, NonNegativeFloat, NonNegativeInt, PositiveFloat


class WorkerBounds(Config):
    """`[autoscale.rollout_worker]` and those of the other roles."""

    min: NonNegativeInt = 0
    """Smallest number of workers; those of `[actors]` and `[hosts]` always stay."""
    max: NonNegativeInt = 0
    """Largest number of workers, those of `[actors]` and `[hosts]` included; 0 leaves the role as it is."""


class AutoscaleSettings(Config):
    """`[autoscale]`: the number of workers that a run decides on. See docs/scaling.md."""

    enabled: bool = False
    """Decide on numbers of workers within the bounds below, as `ScaleDecided` in the log; `areal-actors why` recommends
    them either way."""
    window_seconds: PositiveFloat = 15.0
    """Length of a window over which the load is measured, in seconds (`LoadMeasured`)."""
    cooldown_seconds: NonNegativeFloat = 60.0
    """Least number of seconds between two decisions."""
    rollout_worker: WorkerBounds = WorkerBounds()
    inference_worker: WorkerBounds = WorkerBounds()
    reward_worker: WorkerBounds = WorkerBounds()

    def bounds(self) -> dict[str, WorkerBounds]:
        """Returns the bounds of the roles that are scaled."""
        by_role = {
            "reward_worker": self.reward_worker,
            "inference_worker": self.inference_worker,
            "rollout_worker": self.rollout_worker,
        }
        return {role: bounds for role, bounds in by_role.items() if bounds.max}
