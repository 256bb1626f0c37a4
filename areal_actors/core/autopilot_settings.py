"""The table `[autopilot]` of a recipe: limits of the staleness gate that a run raises by itself where that helps."""

from __future__ import annotations

from areal_actors.core.config import Config, NonNegativeInt, PositiveInt


class AutopilotSettings(Config):
    """`[autopilot]`: limits that a run chooses between a lowest one, here, and that of `[staleness_gate]`.

    See docs/autopilot.md.
    """

    enabled: bool = False
    """Begin with the limits below and raise them, one at a time, where `areal-actors why` would advise it; a change
    that did not help is taken back. Each is a `LimitDecided` in the log. Loads are measured in windows of
    `autoscale.window_seconds`."""
    min_staleness: NonNegativeInt | None = None
    """Staleness bound that the run begins with, raised by one at a time up to `staleness_gate.max_staleness`. Unset: as
    it is there, and never changed."""
    min_concurrent: PositiveInt | None = None
    """Groups at once that the run begins with, doubled up to `staleness_gate.max_concurrent`. Unset: as many as there,
    and never changed."""

    def lowest(self) -> dict[str, int]:
        """Returns the limit that each setting of the staleness gate begins with, without those that stay."""
        limits = {"max_staleness": self.min_staleness, "max_concurrent": self.min_concurrent}
        return {name: limit for name, limit in limits.items() if self.enabled and limit is not None}
