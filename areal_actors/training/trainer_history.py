"""History of steps and checkpoints from the log: a fold, which the trainer uses for rollbacks.

A replayed step is compared with it. With deterministic arithmetic a difference is an error: something was changed or
damaged, and continuing would publish two different weights under one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import StepMismatch
from areal_actors.core.values import Value
from areal_actors.messages import CheckpointCommitted, RunResumed, StepCompleted, StepDiffered, WeightsPublished

ARITHMETIC = (
    "compile",
    "device",
    "microbatch_tokens",
    "pipeline_parallel",
    "prefix_sharing",
    "ranks",
    "recompute_activations",
    "sequence_parallel",
    "tensor_parallel",
    "threads",
)
"""Settings of `[trainer]` that may change on resume and that affect rounding in a step."""
CAUSES = (
    "the checkpoint, the initial model or the log was changed, the torch version or the machine differs, or memory is"
    " faulty"
)
REMEDY = (
    f"roll back further with `{COMMAND} resume RUN --from step-N`, or resume on the original machine and installation"
)

Part = Literal["sequences", "weights"]
"""Parts of a step that have a checksum in the log: its trained sequences, and the weights after it."""


class HistoryState(Value):
    """Snapshot of a `TrainedHistory`."""

    batches: dict[int, int]
    checkpoints: tuple[CheckpointCommitted, ...]
    weights: dict[int, str]
    sequences: dict[int, str]
    arithmetic: dict[str, Any]
    other_settings: tuple[int, ...]


class TrainedHistory:
    """Steps by weight version: a step on version v produces version v + 1."""

    def __init__(self, *, repeats: bool = True) -> None:
        """`repeats`: a step replayed on this machine gives bit-identical weights."""
        self.repeats = repeats
        self.batches: dict[int, int] = {}
        """Log position of the input of the step on each version: `BatchFormed` or `ExamplesDrawn`."""
        self.checkpoints: list[CheckpointCommitted] = []
        """Checkpoints for rollbacks, oldest first."""
        self._logged: dict[Part, dict[int, str]] = {"sequences": {}, "weights": {}}
        """Checksums from the log, by version."""
        self._unlogged: dict[tuple[Part, int], str] = {}
        """Checksums of this trainer that are not logged yet."""
        self._arithmetic: dict[str, Any] = {}
        self._other_settings: set[int] = set()
        """Versions computed under settings that differ from the current ones."""

    @property
    def checkpoint(self) -> CheckpointCommitted | None:
        """The newest checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    def snapshot(self) -> HistoryState:
        """Returns the whole state."""
        return HistoryState(
            batches=dict(self.batches),
            checkpoints=tuple(self.checkpoints),
            weights=dict(self._logged["weights"]),
            sequences=dict(self._logged["sequences"]),
            arithmetic=dict(self._arithmetic),
            other_settings=tuple(sorted(self._other_settings)),
        )

    def restore(self, state: HistoryState) -> None:
        """Restore a snapshot."""
        self.batches, self.checkpoints = dict(state.batches), list(state.checkpoints)
        self._logged = {"sequences": dict(state.sequences), "weights": dict(state.weights)}
        self._arithmetic, self._other_settings = dict(state.arithmetic), set(state.other_settings)

    # ------------------------------------------------------------ the fold

    def trim(self, step: int) -> None:
        """Forget the steps before this one, whose batches were trimmed from the log and cannot be replayed."""
        for table in (self.batches, self._logged["sequences"], self._logged["weights"]):
            for version in [version for version in table if version < step]:
                del table[version]
        self._other_settings = {version for version in self._other_settings if version >= step}

    def record_start(self, recipe: Mapping[str, Any]) -> None:
        """Record the recipe of a new run."""
        self._arithmetic = _arithmetic(recipe)

    def record_resume(self, event: RunResumed) -> None:
        """Record a resume, possibly with changed settings or from an earlier checkpoint."""
        if (arithmetic := _arithmetic(event.recipe)) != self._arithmetic:
            self._other_settings |= set(self._logged["weights"])
        self._arithmetic = arithmetic
        if event.from_step >= 0:
            self.checkpoints = [saved for saved in self.checkpoints if saved.step <= event.from_step]

    def record_saved(self, event: CheckpointCommitted) -> None:
        """Record a checkpoint; the event lists the others that still exist."""
        other_checkpoints = [
            saved for saved in self.checkpoints if saved.step in event.kept and saved.step != event.step
        ]
        self.checkpoints = sorted([*other_checkpoints, event], key=lambda saved: saved.step)

    def remove_checkpoint(self, step: int) -> CheckpointCommitted | None:
        """Remove the checkpoint of this step; returns the one before it."""
        self.checkpoints = [saved for saved in self.checkpoints if saved.step != step]
        return next((saved for saved in reversed(self.checkpoints) if saved.step < step), None)

    def record_step(self, event: StepCompleted, *, replayed: bool) -> None:
        """Record a logged step.

        Raises:
            StepMismatch: this trainer computed another result for it.
        """
        self._log("sequences", event.step, event.sequences_checksum, replayed=replayed)
        if event.weights_checksum:
            self._log("weights", event.step, event.weights_checksum, replayed=replayed)

    def record_published(self, event: WeightsPublished, *, replayed: bool) -> None:
        """Record a logged version.

        Raises:
            StepMismatch: this trainer computed other weights for it.
        """
        self._log("weights", event.weight_version, event.location.checksum, replayed=replayed)

    def _log(self, part: Part, step: int, checksum: str, *, replayed: bool) -> None:
        if not replayed:
            self._compare(part, step, checksum)
        self._unlogged.pop((part, step), None)
        self._logged[part][step] = checksum
        if part == "weights":
            self._other_settings.discard(step)

    # ------------------------------------------------------------ comparison with the log

    def has(self, part: Part, step: int, checksum: str) -> bool:
        """True if the log has this checksum of a step."""
        return self._logged[part].get(step) == checksum

    def check(self, part: Part, step: int, checksum: str) -> StepDiffered | None:
        """Compare a part of a step with the log's.

        Returns an event for an allowed difference, None if they are equal or new.

        Raises:
            StepMismatch: they differ and must not.
        """
        differed = self._compare(part, step, checksum)
        if step not in self._logged[part]:
            self._unlogged.setdefault((part, step), checksum)
        return differed

    def _compare(self, part: Part, step: int, digest: str) -> StepDiffered | None:
        logged = self._logged[part].get(step) or self._unlogged.get((part, step), "")
        if not logged or not digest or logged == digest:
            return None
        if step in self._other_settings:
            return StepDiffered(
                step=step,
                logged=logged,
                found=digest,
                reason=f"its {part} were computed with other settings of [trainer]",
            )
        if not self.repeats:
            return StepDiffered(
                step=step, logged=logged, found=digest, reason="arithmetic is not deterministic on this device"
            )
        raise StepMismatch(
            f"step {step} was replayed with {part} {digest}, expected {logged} from the log: {CAUSES}; {REMEDY}. "
            'Set trainer.retaken_steps = "report" to continue anyway'
        )


def _arithmetic(recipe: Mapping[str, Any]) -> dict[str, Any]:
    trainer = recipe.get("trainer", {})
    return {name: trainer.get(name) for name in ARITHMETIC}
