"""The table `[gateway.feedback]` of a recipe: judgements of sessions that come at any time."""

from __future__ import annotations

from areal_actors.core.config import Config, PositiveFloat

LABELS = {"good": 1.0, "bad": 0.0, "up": 1.0, "down": 0.0, "yes": 1.0, "no": 0.0}


class FeedbackSettings(Config):
    """`[gateway.feedback]`: feedback on sessions of external agents, while they run and after their end."""

    max_days: PositiveFloat = 30.0
    """Time since the start of a session in which feedback on it is recorded, in days."""
    reward_name: str = "feedback"
    """Name of the judgement that is the reward, as one without a name is; others are numbers beside it."""
    labels: dict[str, float] = {}
    """Rewards of labels that may be sent in place of a number, beside `good`, `up` and `yes` (1), and `bad`, `down` and
    `no` (0)."""

    def rewards_of_labels(self) -> dict[str, float]:
        """Returns the reward of every label, by its name in lower case."""
        return LABELS | {name.lower(): reward for name, reward in self.labels.items()}
