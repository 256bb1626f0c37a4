"""What the log says of the steps that were taken and of the checkpoints that there are: a fold, by which the trainer goes back.

A step that is taken again is compared with it. Where arithmetic repeats to the last bit, a difference is an error: something
was changed or damaged, and to go on would put two different weights under one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_actors.errors import StepMismatch
from areal_actors.messages import CheckpointSaved, RunResumed, StepCompleted, StepDiffered, WeightsPublished
from areal_actors.values import Value

ARITHMETIC = (
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
"""Settings of `[trainer]` that may change when a run is resumed, and with them the last digits of what a step computes."""
CAUSES = (
    "the checkpoint or the model that it began from was changed, the log was, the installed torch or the machine is another one, or "
    "memory is faulty"
)
REMEDY = "go back further with `areal resume RUN --from step-N`, or go on where the run began"


class HistoryState(Value):
    """What a snapshot has of it."""

    batches: dict[int, int]
    checkpoints: tuple[CheckpointSaved, ...]
    weights: dict[int, str]
    rows: dict[int, str]
    arithmetic: dict[str, Any]
    other_settings: tuple[int, ...]


class TrainedHistory:
    """Steps by weight version: the version that a step makes is one more than the one that it is taken on."""

    def __init__(self, *, repeats: bool = True) -> None:
        """`repeats`: a step that is taken again on this machine gives the same weights to the last bit."""
        self.repeats = repeats
        self.batches: dict[int, int] = {}
        """Position in the log of what each version was trained on: `BatchFormed` or `ExamplesDrawn`."""
        self.checkpoints: list[CheckpointSaved] = []
        """Those that the trainer can go back to, oldest first."""
        self._weights: dict[int, str] = {}
        self._rows: dict[int, str] = {}
        self._unlogged: dict[tuple[str, int], str] = {}
        """What this trainer has made and the log does not have yet: "rows" or "weights" of a version."""
        self._arithmetic: dict[str, Any] = {}
        self._other_settings: set[int] = set()
        """Versions made under settings that compute otherwise than those of now."""

    @property
    def checkpoint(self) -> CheckpointSaved | None:
        """The newest."""
        return self.checkpoints[-1] if self.checkpoints else None

    def snapshot(self) -> HistoryState:
        """All of it."""
        return HistoryState(
            batches=dict(self.batches),
            checkpoints=tuple(self.checkpoints),
            weights=dict(self._weights),
            rows=dict(self._rows),
            arithmetic=dict(self._arithmetic),
            other_settings=tuple(sorted(self._other_settings)),
        )

    def restore(self, state: HistoryState) -> None:
        """Go on from there."""
        self.batches, self.checkpoints = dict(state.batches), list(state.checkpoints)
        self._weights, self._rows = dict(state.weights), dict(state.rows)
        self._arithmetic, self._other_settings = dict(state.arithmetic), set(state.other_settings)

    # ------------------------------------------------------------ the fold

    def trimmed(self, step: int) -> None:
        """The log no longer has the batches before this step, so that no step before it is taken again."""
        for known in (self.batches, self._weights, self._rows):
            for version in [version for version in known if version < step]:
                del known[version]
        self._other_settings = {version for version in self._other_settings if version >= step}

    def started(self, recipe: Mapping[str, Any]) -> None:
        """The run begins under this recipe."""
        self._arithmetic = _arithmetic(recipe)

    def resumed(self, event: RunResumed) -> None:
        """The run goes on, possibly under other settings, possibly from an earlier checkpoint."""
        if (arithmetic := _arithmetic(event.recipe)) != self._arithmetic:
            self._other_settings |= set(self._weights)
        self._arithmetic = arithmetic
        if event.from_step >= 0:
            self.checkpoints = [saved for saved in self.checkpoints if saved.step <= event.from_step]

    def saved(self, event: CheckpointSaved) -> None:
        """There is another checkpoint; it says which of the others are still there."""
        others = [saved for saved in self.checkpoints if saved.step in event.kept and saved.step != event.step]
        self.checkpoints = sorted([*others, event], key=lambda saved: saved.step)

    def lost(self, step: int) -> CheckpointSaved | None:
        """The checkpoint of this step is not to be used; returns the one before it."""
        self.checkpoints = [saved for saved in self.checkpoints if saved.step != step]
        return next((saved for saved in reversed(self.checkpoints) if saved.step < step), None)

    def completed(self, event: StepCompleted, *, replayed: bool) -> None:
        """A step as the log has it.

        Raises:
            StepMismatch: this trainer has taken it, and otherwise.
        """
        self._log(self._rows, event.step, event.rows_checksum, "rows", replayed=replayed)
        if event.weights_checksum:
            self._log(self._weights, event.step, event.weights_checksum, "weights", replayed=replayed)
            self._other_settings.discard(event.step)

    def published(self, event: WeightsPublished, *, replayed: bool) -> None:
        """A version as the log has it.

        Raises:
            StepMismatch: this trainer has made it, and otherwise.
        """
        self._log(self._weights, event.weight_version, event.location.checksum, "weights", replayed=replayed)
        self._other_settings.discard(event.weight_version)

    def _log(self, known: dict[int, str], step: int, checksum: str, what: str, *, replayed: bool) -> None:
        if not replayed:
            self._compare(known, step, checksum, what)
        self._unlogged.pop((what, step), None)
        known[step] = checksum

    # ------------------------------------------------------------ what is made now, beside what was

    def check_rows(self, step: int, checksum: str) -> StepDiffered | None:
        """The rows that a step was taken on, again or for the first time; as `check_weights`."""
        return self._made(self._rows, step, checksum, "rows")

    def check_weights(self, step: int, checksum: str) -> StepDiffered | None:
        """The weights that a step came to, again or for the first time; an event if they differ from the log's where they may.

        Raises:
            StepMismatch: they differ where they may not.
        """
        return self._made(self._weights, step, checksum, "weights")

    def _made(self, known: dict[int, str], step: int, checksum: str, what: str) -> StepDiffered | None:
        differed = self._compare(known, step, checksum, what)
        if step not in known:
            self._unlogged.setdefault((what, step), checksum)
        return differed

    def _compare(self, known: Mapping[int, str], step: int, found: str, what: str) -> StepDiffered | None:
        logged = known.get(step) or self._unlogged.get((what, step), "")
        if not logged or not found or logged == found:
            return None
        if step in self._other_settings:
            return StepDiffered(step=step, logged=logged, found=found, reason=f"its {what} were made under other settings of [trainer]")
        if not self.repeats:
            return StepDiffered(step=step, logged=logged, found=found, reason="arithmetic does not repeat to the last bit on this device")
        raise StepMismatch(
            f"step {step} was taken again and has {what} {found}, but the log has {logged} for them: {CAUSES}; {REMEDY}. "
            'trainer.retaken_steps = "report" goes on all the same'
        )


def _arithmetic(recipe: Mapping[str, Any]) -> dict[str, Any]:
    trainer = recipe.get("trainer", {})
    return {name: trainer.get(name) for name in ARITHMETIC}
