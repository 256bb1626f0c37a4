"""Messages about the draws of tasks: sources that end, and pools of measured difficulty."""

from __future__ import annotations

from typing import ClassVar

from areal_bus.message import Event


class SourcesChanged(Event):
    """Other weights of the sources of a mixture, since one has reached its success rate (`task.mix.until`)."""

    subject: ClassVar[str] = "sources.changed"
    first_group: int
    """First group that is drawn with them."""
    weights: dict[str, float]
    """Weight by source; one without a weight is not drawn."""
    source: str
    """Source that has reached its success rate."""


class PoolsMeasured(Event):
    """Tasks by the success rate of their last group, when a batch was formed (`[task.curriculum]`)."""

    subject: ClassVar[str] = "pools.measured"
    step: int
    """Step of the batch, counted from 1."""
    pools: dict[str, dict[str, int]]
    """Tasks in each pool, `new`, `mixed`, `solved`, `unsolved`, `retired` and `running`, by source; the source is empty
    without a mixture."""
    returned: int
    """Draws since the run began of tasks that had no success before."""
