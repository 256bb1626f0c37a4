"""Retention of checkpoints: existing checkpoints, their ratings, and which to keep; an immutable value, without I/O.

Training continues during an evaluation. So a checkpoint is saved when an evaluation is due, and kept until its rating
is known; `due`, the step at which both were due, connects them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from areal_bus.message import FrozenMeta


class Saved(msgspec.Struct, metaclass=FrozenMeta):
    """A checkpoint."""

    step: int
    """Training steps of its weights."""
    due: int = -1
    """Step at which it and an evaluation were due; -1 without an evaluation."""
    cursor: int = 0
    """Log position of the last batch of its weights; resuming from it needs no earlier event."""


class Rating(msgspec.Struct, metaclass=FrozenMeta):
    """Result of an evaluation."""

    weight_version: int
    value: float


class CheckpointRetention(msgspec.Struct, metaclass=FrozenMeta):
    """A fold over saved checkpoints and evaluations."""

    keep_last: int
    """Number of newest checkpoints to keep."""
    keep_best: bool = False
    """Also keep the best checkpoint, and candidates whose rating is pending."""
    lowest: bool = False
    """True if the lowest value is the best."""
    checkpoints: tuple[Saved, ...] = ()
    """Oldest first."""
    ratings: dict[int, Rating] = {}
    """By `due`."""

    def record_saved(self, checkpoint: Saved) -> CheckpointRetention:
        """Record a written checkpoint; it replaces an earlier one of its step and keeps its rating."""
        same = next((saved for saved in self.checkpoints if saved.step == checkpoint.step), checkpoint)
        checkpoint = checkpoint if checkpoint.due >= 0 else same
        other_checkpoints = (other for other in self.checkpoints if other.step != checkpoint.step)
        return _prune(msgspec.structs.replace(self, checkpoints=(*other_checkpoints, checkpoint)))

    def without(self, step: int) -> CheckpointRetention:
        """Remove the checkpoint of this step, which is damaged or no longer used."""
        return msgspec.structs.replace(
            self, checkpoints=tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.step != step)
        )

    def recoverable(self) -> tuple[Saved, ...]:
        """Checkpoints for rollbacks, oldest first: the newest `keep_last`, without one kept only as the best."""
        return self.checkpoints[-self.keep_last :]

    def record_rating(self, due: int, rating: Rating) -> CheckpointRetention:
        """Record the rating of the evaluation that was due at this step."""
        return _prune(msgspec.structs.replace(self, ratings={**self.ratings, due: rating}))

    def best(self) -> tuple[Saved, Rating] | None:
        """Checkpoint with the best value (the earliest of several); None if none is rated."""
        rated = [
            (checkpoint, self.ratings[checkpoint.due])
            for checkpoint in self.checkpoints
            if checkpoint.due in self.ratings
        ]
        sign = -1 if self.lowest else 1
        return max(rated, key=lambda pair: (sign * pair[1].value, -pair[0].step), default=None)

    def steps(self) -> set[int]:
        """Steps of all checkpoints."""
        return {checkpoint.step for checkpoint in self.checkpoints}


def _prune(retention: CheckpointRetention) -> CheckpointRetention:
    staying = {
        *retention.checkpoints[-retention.keep_last :],
        *(_saved_for_best(retention) if retention.keep_best else ()),
    }
    return msgspec.structs.replace(
        retention, checkpoints=tuple(checkpoint for checkpoint in retention.checkpoints if checkpoint in staying)
    )


def _saved_for_best(retention: CheckpointRetention) -> Iterator[Saved]:
    """The best checkpoint, and those of the running evaluation and of the next one."""
    if best := retention.best():
        yield best[0]
    awaited = [checkpoint for checkpoint in retention.checkpoints if checkpoint.due > max(retention.ratings, default=0)]
    yield from awaited[:1] + awaited[-1:]
