"""Rows of the page's tables, each a JSON array, with the positions in the log at which they changed.

A browser shows any earlier moment from the positions alone; it asks for rows that changed after the last event that it
has. Times are seconds since the first event; a position of 0 means that it has not happened.
No row refers to itself: the garbage collector need not look at hundreds of thousands of them.
"""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """A row of a table."""

    id: int
    """Index in its table."""
    changed: int
    """Position of the last event that changed it."""


class SampledSpan(msgspec.Struct, array_like=True, gc=False):
    """Sampled tokens of one weight version."""

    weight_version: int
    tokens: int


class CallRow(msgspec.Struct, array_like=True, gc=False):
    """A completed model call."""

    position: int
    at: float
    interaction: str
    spans: list[SampledSpan]


class EpisodeRow(Row, kw_only=True, gc=False):
    """An attempt at an episode."""

    name: str
    attempt: int
    group: str
    purpose: str
    task: str = ""
    granted: int
    """Position of the event that let it start; of an attempt again, that of the failure before it."""
    granted_at: float
    calls: list[CallRow] = []
    scored: int = 0
    scored_at: float = 0.0
    ended: int = 0
    ended_at: float = 0.0
    outcome: str = ""
    """`exported`, `evaluated`, `abandoned`, `rejected`, `surplus`, or empty while it runs; only `abandoned` is a
    failure."""
    reward: float | None = None
    tokens: int = 0
    """Number of sampled tokens."""
    batch: int = 0
    """Position of the batch that it is part of."""
    step: int = 0
    """Step, counted from 1, of that batch."""
    trained: int = 0
    """Position of the publication of the weights of that step."""
    trained_at: float = 0.0
    dropped: int = 0
    reason: str = ""
    """Reason why it was dropped or abandoned."""

    def ends(self) -> tuple[int, int]:
        """Returns the positions of its score and of its end, each 0 if there is none."""
        return self.scored, self.ended


class StepRow(Row, kw_only=True, gc=False):
    """A completed step."""

    step: int
    position: int
    at: float
    metrics: dict[str, float]
    replaced: int = 0
    """Position of the event by which a restarted trainer repeated this step or an earlier one."""


class BatchRow(Row, kw_only=True, gc=False):
    """A batch."""

    step: int
    """Step, counted from 1."""
    position: int
    at: float
    oldest_version: int
    groups: list[list[int]]
    """Ids of the episodes of each group; -1 for one that the log no longer has."""
    dropped_trajectories: int
    filtered_groups: int
    refused: str = ""
    """Sequences that the trainer left out, as a sentence."""


class VersionRow(Row, kw_only=True, gc=False):
    """Weights that were published, or loaded by a worker."""

    weight_version: int
    position: int
    at: float
    worker: str = ""
    """Inference worker that loaded them; empty for the publication."""


class EvaluationRow(Row, kw_only=True, gc=False):
    """Held-out result."""

    weight_version: int
    position: int
    at: float
    mode: str
    """`sampled`, `greedy`, or `examples`."""
    metrics: dict[str, float]


class ActorRow(Row, kw_only=True, gc=False):
    """Start, failure or stop of an actor."""

    actor: str
    process: str
    change: str
    position: int
    at: float
    detail: str = ""


class BoundRow(Row, kw_only=True, gc=False):
    """A staleness bound, in effect from its position on."""

    max_staleness: int
    position: int


class NoticeRow(Row, kw_only=True, gc=False):
    """A notable event as one sentence."""

    position: int
    at: float
    subject: str
    sentence: str
