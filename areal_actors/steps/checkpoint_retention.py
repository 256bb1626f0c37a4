"""Which checkpoints there are, how good each is known to be, and which of them stay: an immutable value, without I/O.

An evaluation takes a while, and meanwhile the trainer goes on. So a checkpoint is saved when an evaluation falls due, and
kept until its value is known: `due`, the step at which both fell due, is what connects them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bus.message import FrozenMeta


class Saved(msgspec.Struct, metaclass=FrozenMeta):
    """A checkpoint."""

    step: int
    """Steps that its weights have been trained."""
    due: int = -1
    """The step at which it was asked for, and an evaluation too; -1 if no evaluation will come."""
    cursor: int = 0
    """Position in the log of what its weights were trained on last: to go on from it, nothing before is needed."""


class Rating(msgspec.Struct, metaclass=FrozenMeta):
    """What an evaluation found."""

    weight_version: int
    value: float


class CheckpointRetention(msgspec.Struct, metaclass=FrozenMeta):
    """A fold over what was saved and evaluated."""

    keep_last: int
    """So many of the newest stay."""
    keep_best: bool = False
    """So does the best, and what may still turn out to be it."""
    lowest: bool = False
    """The lowest value is the best."""
    checkpoints: tuple[Saved, ...] = ()
    """Oldest first."""
    ratings: dict[int, Rating] = {}
    """By `due`."""

    def saved(self, checkpoint: Saved) -> CheckpointRetention:
        """A checkpoint was written; it takes the place of an earlier one of its step, and what was known of that."""
        same = next((other for other in self.checkpoints if other.step == checkpoint.step), checkpoint)
        checkpoint = checkpoint if checkpoint.due >= 0 else same
        others = (other for other in self.checkpoints if other.step != checkpoint.step)
        return _pruned(msgspec.structs.replace(self, checkpoints=(*others, checkpoint)))

    def without(self, step: int) -> CheckpointRetention:
        """The checkpoint of this step is damaged, or not to be used any more."""
        return msgspec.structs.replace(self, checkpoints=tuple(one for one in self.checkpoints if one.step != step))

    def recoverable(self) -> tuple[Saved, ...]:
        """The checkpoints that a run goes back to, oldest first: the newest `keep_last`. One kept as the best is for use, not for this."""
        return self.checkpoints[-self.keep_last :]

    def rated(self, due: int, rating: Rating) -> CheckpointRetention:
        """The evaluation that fell due at this step is over."""
        return _pruned(msgspec.structs.replace(self, ratings={**self.ratings, due: rating}))

    def best(self) -> tuple[Saved, Rating] | None:
        """The checkpoint with the best value, the first of several; None while none has one."""
        rated = [(checkpoint, self.ratings[checkpoint.due]) for checkpoint in self.checkpoints if checkpoint.due in self.ratings]
        sign = -1 if self.lowest else 1
        return max(rated, key=lambda pair: (sign * pair[1].value, -pair[0].step), default=None)

    def steps(self) -> set[int]:
        """Of all checkpoints."""
        return {checkpoint.step for checkpoint in self.checkpoints}


def _pruned(retention: CheckpointRetention) -> CheckpointRetention:
    staying = {*retention.checkpoints[-retention.keep_last :], *(_needed_for_best(retention) if retention.keep_best else ())}
    return msgspec.structs.replace(retention, checkpoints=tuple(one for one in retention.checkpoints if one in staying))


def _needed_for_best(retention: CheckpointRetention) -> Iterator[Saved]:
    """The best, and the checkpoints of the evaluation under way and of the one that would come next."""
    if best := retention.best():
        yield best[0]
    awaited = [one for one in retention.checkpoints if one.due > max(retention.ratings, default=0)]
    yield from awaited[:1] + awaited[-1:]
