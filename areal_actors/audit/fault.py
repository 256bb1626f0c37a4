"""Checks of an audit, and a fault that it finds."""

from __future__ import annotations

from collections.abc import Mapping

from areal_actors.core.values import Value

CHECKS: Mapping[str, str] = {
    "gap": "sequence numbers have no gaps, and every event can be read",
    "grant": "groups are granted once and in order, and only they have episodes",
    "source": "every group of a mixture is of the source that seed and weights draw",
    "lost": "at the end of a run no trajectory or group is open, and none is passed over for younger ones",
    "twice": "no trajectory is in two batches, twice in one, or in a batch and dropped",
    "drop": "dropped trajectories were exported, and their group is complete",
    "batch": "batches are in order, and name whole groups and the events of their trajectories",
    "count": "the counts of the batcher equal those of the log",
    "step": "each step is completed once, in order, after its batch",
    "sequences": "the sequences trained are those of the batch",
    "version": "each weight version is published after its step, and no token has an unpublished version, or another"
    " one than its session",
    "checksum": "a version has the same checksum wherever it was published, loaded or recomputed",
    "checkpoint": "a checkpoint names its step and the event of its last batch",
    "end": "the last event of the run has the step count of the log",
}


class AuditFault(Value):
    """An inconsistency in a log."""

    sequence: int
    """Sequence of the event that reveals the fault; 0 if only the end of the log does."""
    check: str
    """One of `CHECKS`."""
    sentence: str

    def __str__(self) -> str:
        return f"{f'event {self.sequence}' if self.sequence else 'end of the log'}: {self.check}: {self.sentence}"
