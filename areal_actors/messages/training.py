"""Messages from trajectories to weights and checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from areal_actors.core.values import Value, WeightsLocation
from areal_bus.message import Event, Work


class TrajectoryRef(Value):
    """One trajectory of a batch."""

    episode: str
    sequence: int
    """Position of its `TrajectoryExported` in the log."""
    baselines: dict[str, float] = {}
    """Baseline of each of its roles, of the rewards of the episodes before it; empty without role-wise baselines."""


class BatchFormed(Event):
    """Batch of a training step: complete groups, oldest first, each trajectory by its position in the log."""

    subject: ClassVar[str] = "batch.formed"
    step: int
    """Step, counted from 0, equal to the trainer's weight version when it trains this batch."""
    groups: tuple[tuple[TrajectoryRef, ...], ...]
    """Trajectories of each group."""
    oldest_version: int
    """Tokens older than this weight version are masked out of the loss."""
    trained_trajectories: int
    """Number of trajectories in batches since the run began, including this one."""
    trained_tokens: int
    """Number of their sampled tokens, including masked ones."""
    dropped_trajectories: int
    """Number of exported trajectories since the run began that will not be trained."""
    dropped_tokens: int
    """Number of their sampled tokens."""
    filtered_groups: int = 0
    """Number of groups dropped by the filter since the previous batch."""
    oldest_sequence: int = 0
    """Log position of the oldest trajectory of this batch and of all waiting or incomplete groups: this and later steps
    train no earlier one. 0 if it is not recorded."""

    def group_numbers(self) -> tuple[int, ...]:
        """Returns the number of each group, from its episodes' names."""
        return tuple(int(group[0].episode.partition(".")[0]) for group in self.groups)


class ExamplesDrawn(Event):
    """Examples of a training step in a supervised run."""

    subject: ClassVar[str] = "examples.drawn"
    step: int
    """Step, counted from 0, as `BatchFormed.step`."""
    numbers: tuple[int, ...]
    """Indices in the dataset, counted from 0."""
    epoch: int
    """Epoch of the first of them."""


class ExamplesDropped(Event):
    """Examples that are too long are left out, as configured in the recipe; the others are renumbered from 0."""

    subject: ClassVar[str] = "examples.dropped"
    dropped: int
    """Number of training examples left out."""
    held_out_dropped: int
    """Number of held-out examples left out."""
    left: int
    """Number of examples left for training."""
    limit: int
    """Maximum number of tokens per sequence."""


class FilterExhausted(Event):
    """The filter has dropped too many groups in a row; the run saves a checkpoint and ends."""

    subject: ClassVar[str] = "filter.exhausted"
    reason: str


class TrainerRolledBack(Event):
    """Rollback: ranks of the trainer have died; new ones repeat the steps since the last checkpoint and continue."""

    subject: ClassVar[str] = "trainer.rolled_back"
    step: int
    """Weight version to reach again, counted from 0."""
    weight_version: int
    """Weight version of the checkpoint, or 0."""
    reason: str


class RefusedSequence(Value):
    """A sequence of a batch, or a whole trajectory, that cannot be trained."""

    episode: str
    sequence: int = -1
    """Index of the sequence among all sequences of the batch's valid trajectories; -1 if the trajectory yields no
    sequences."""
    token: int = -1
    """Position of the token in the sequence; -1 if the cause is not a single token."""
    cause: str
    """Failed check, value found and value expected."""


class BatchRefused(Event):
    """Sequences were left out of a step because they cannot be trained, or a step or one of its updates was skipped.

    The step is counted and its weights are published in any case. The decision is a function of log and weights.
    """

    subject: ClassVar[str] = "batch.refused"
    step: int
    """Step, as `BatchFormed.step`."""
    sequences: tuple[RefusedSequence, ...] = ()
    """Sequences left out of the step."""
    trained_sequences: int
    """Number of sequences trained; 0 if the step was skipped: weights and optimizer are then unchanged."""
    cause: str = ""
    """Reason why the step or some of its updates were skipped; empty if only sequences were left out."""


class TrainingHalted(Event):
    """Too many steps in a row were skipped; the run saves a checkpoint and ends."""

    subject: ClassVar[str] = "training.halted"
    reason: str


class StepCompleted(Event):
    """A training step was completed, or skipped (`BatchRefused`)."""

    subject: ClassVar[str] = "step.completed"
    step: int
    """Step, counted from 1."""
    metrics: dict[str, float]
    sequences_checksum: str
    """Checksum of the sampled ids and log-probabilities in the loss, or of the ids of examples, in sequence order."""
    weights_checksum: str = ""
    """Checksum of the weights after the step, in runs that do not publish them; otherwise in `WeightsPublished`."""


class WeightsPublished(Event):
    """New weights can be loaded; tokens sampled from now on should have this version."""

    subject: ClassVar[str] = "weights.published"
    weight_version: int
    location: WeightsLocation
    """Location of the weights."""


class EvaluationCompleted(Event):
    """Accuracy on held-out tasks."""

    subject: ClassVar[str] = "evaluation.completed"
    weight_version: int
    """Weight version of all inference workers when it began; later versions are in `sampled_by`."""
    mode: Literal["sampled", "greedy"]
    """`greedy`: temperature 0; `sampled`: as in training."""
    tasks: int
    """Number of held-out tasks."""
    failed: int
    """Number of episodes that ended without a score; they are excluded from the accuracy."""
    accuracy: float
    """Share of scored episodes with a reward of at least 0.5."""
    mean_tokens: float
    """Mean number of sampled tokens of an episode."""
    reward_metrics: dict[str, float] = {}
    """Means of the further numbers from the reward function, over the episodes that have them."""
    samples: tuple[dict[str, Any], ...] = ()
    """Some tasks with their answers."""
    reward_mean: float = 0.0
    """Mean reward over the scored episodes."""
    common_reward_mean: float = 0.0
    """Mean reward over the tasks common to all evaluations of the run, which makes them comparable."""
    sampled_by: dict[int, int] = {}
    """Number of tokens sampled from each weight version; with a single version the evaluation is exactly of that
    version."""
    ended_by_model: float = 0.0
    """Share of the scored episodes that the model itself ended; see `task.overflow_reward`."""


class LossEvaluated(Event):
    """Loss and other metrics of the algorithm on held-out examples."""

    subject: ClassVar[str] = "loss.evaluated"
    weight_version: int
    examples: int
    """Number of held-out examples."""
    metrics: dict[str, float]
    """`loss`, and for pairs also `accuracy` and `margin`."""


class SaveCheckpoint(Work):
    """Write a checkpoint of the trainer's current state to this folder."""

    subject: ClassVar[str] = "checkpoint.save"
    folder: str
    """Path relative to the run's folder, as for all checkpoints, since a run's folder can be moved."""
    reason: str


class CheckpointStaged(Event):
    """The trainer has written a checkpoint, which is not yet under its final name."""

    subject: ClassVar[str] = "checkpoint.staged"
    folder: str
    step: int
    cursor: int
    """Sequence of the last `BatchFormed` or `ExamplesDrawn` on which these weights were trained."""


class CheckpointCommitted(Event):
    """A checkpoint is complete, synced to disk and under its final name, and the log up to its cursor is on disk."""

    subject: ClassVar[str] = "checkpoint.committed"
    folder: str
    step: int
    cursor: int
    manifest: str = ""
    """Digest of its `manifest.json`, which has the digest of every file; empty if written by an earlier version."""
    kept: tuple[int, ...] = ()
    """Steps of the checkpoints available for a rollback, oldest first, including this one; empty if only this one is
    known."""


class CheckpointDamaged(Event):
    """A checkpoint cannot be used.

    The trainer rolls back to the previous one and repeats the steps since then from the log.
    """

    subject: ClassVar[str] = "checkpoint.damaged"
    step: int
    """Step of the damaged checkpoint."""
    folder: str
    """Path to which the damaged checkpoint was moved; empty if there was none."""
    weight_version: int
    """Weight version of the checkpoint used instead; 0 for the initial weights."""
    reason: str
    """Value found and value expected."""


class StepDiffered(Event):
    """A repeated step gave other weights than the log has, where that is possible.

    It is on a GPU, or under other settings.
    """

    subject: ClassVar[str] = "step.differed"
    step: int
    """Weight version that was recomputed."""
    logged: str
    """Its checksum in the log."""
    found: str
    """The recomputed checksum."""
    reason: str


class BestCheckpointChosen(Event):
    """This checkpoint is the best of those evaluated so far; `best` in the folder of checkpoints links to it."""

    subject: ClassVar[str] = "checkpoint.chosen"
    folder: str
    step: int
    weight_version: int
    """Evaluated weight version: the checkpoint's own, unless training continued before the trainer could save."""
    metric: str
    """`greedy` or `sampled`: mean reward on held-out tasks; `loss`: on held-out examples."""
    value: float
    """Value of the metric."""
