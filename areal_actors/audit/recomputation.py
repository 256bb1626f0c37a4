"""Messages between an audit and the process that repeats the steps of its log."""

from __future__ import annotations

from areal_actors.core.values import Value


class RecomputeOrder(Value):
    """Order to repeat the steps of a log."""

    log: str
    """Path of the exported log."""
    place: str
    """Folder of the run, with a model that the run made; any other path if there is none."""
    steps: int
    """Last step to repeat, from the first."""
    stretches: dict[int, int] = {}
    """Instead, the last step of each stretch to repeat, by the step of the kept state that it begins with."""


class RecomputeProgress(Value):
    """Progress or result of a trainer that replays the log."""

    phase: str = ""
    """Current phase of a long preparation."""
    version: int = -1
    checksum: str = ""
    """Checksum of that weight version."""
    step: int = 0
    sequences_checksum: str = ""
    metrics: dict[str, float] = {}
    error: str = ""
    """Reason why the replay stopped; empty while it goes on."""
