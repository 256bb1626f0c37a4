"""From trajectories to weights and checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from areal_actors.values import Value, WeightsLocation
from bus.message import Event, Work


class Member(Value):
    """One trajectory of a batch."""

    episode: str
    sequence: int
    """Position of its `TrajectoryExported` in the log."""


class BatchFormed(Event):
    """The truth of what a step trains: whole groups, oldest first, each trajectory by its place in the log."""

    subject: ClassVar[str] = "batch.formed"
    step: int
    """Counted from 0: the weight version that the trainer has when it trains this batch."""
    groups: tuple[tuple[Member, ...], ...]
    oldest_version: int
    """Tokens older than this weight version are masked out of the loss."""
    trained_trajectories: int
    """In batches since the run began, this one included."""
    trained_tokens: int
    """Their sampled tokens, masked ones too."""
    dropped_trajectories: int
    """Exported since the run began and never trained."""
    dropped_tokens: int
    filtered_groups: int = 0
    """Dropped by the filter since the batch before this one."""
    oldest_sequence: int = 0
    """Position in the log of the oldest trajectory of this batch and of all groups that wait or are incomplete: no earlier one will be
    trained by this or a later step. 0 where it is not recorded."""

    def group_numbers(self) -> tuple[int, ...]:
        """The number of each group, read from its episodes' names."""
        return tuple(int(group[0].episode.partition(".")[0]) for group in self.groups)


class ExamplesDrawn(Event):
    """What a step trains in a run that learns from examples instead of episodes."""

    subject: ClassVar[str] = "examples.drawn"
    step: int
    """Counted from 0, as `BatchFormed.step`."""
    numbers: tuple[int, ...]
    """Of the dataset's examples, counted from 0."""
    epoch: int
    """That the first of them belongs to."""


class ExamplesDropped(Event):
    """Examples that are too long are left out, as the recipe says; what is drawn is drawn of the others, counted anew from 0."""

    subject: ClassVar[str] = "examples.dropped"
    dropped: int
    held_out_dropped: int
    left: int
    """To train on."""
    limit: int
    """Tokens that a row may have."""


class GroupsUsedUp(Event):
    """The filter has dropped too many groups in a row; the run is to save what it has, and end."""

    subject: ClassVar[str] = "groups.used_up"
    reason: str


class TrainingFellBack(Event):
    """Ranks of the trainer have died; fresh ones take the steps since their last checkpoint again, and then go on."""

    subject: ClassVar[str] = "training.fell_back"
    step: int
    """The weight version that they are to reach again, counted from 0."""
    weight_version: int
    """That of the checkpoint, or 0."""
    reason: str


class RefusedRow(Value):
    """A row of a batch, or a whole trajectory, that cannot be trained."""

    episode: str
    row: int = -1
    """Index of the row among all rows of the batch's sound trajectories; -1 if no rows can be made of the trajectory."""
    token: int = -1
    """Position in the row; -1 if it is not about one token."""
    cause: str
    """The check that failed, what was found and what was expected."""


class BatchRefused(Event):
    """Rows were left out of a step because they cannot be trained, or a step or an update of it changed no weight.

    The step is counted and its weights are published in any case. The same log and weights give the same decision again.
    """

    subject: ClassVar[str] = "batch.refused"
    step: int
    """As `BatchFormed.step`."""
    rows: tuple[RefusedRow, ...] = ()
    trained_rows: int
    """Rows that the step was taken on; 0 if the step was skipped: weights and optimizer are then as before it."""
    cause: str = ""
    """Why the step or some of its updates were skipped; empty if only rows were left out."""


class TrainingHalted(Event):
    """Too many steps in a row were skipped; the run is to save what it has, and end."""

    subject: ClassVar[str] = "training.halted"
    reason: str


class StepCompleted(Event):
    """The optimizer has taken a step, or the step was skipped (`BatchRefused`)."""

    subject: ClassVar[str] = "step.completed"
    step: int
    """Counted from 1."""
    metrics: dict[str, float]
    rows_checksum: str
    """Of the sampled ids and log-probabilities that the loss was given, or of the ids of examples, in row order."""
    weights_checksum: str = ""
    """Of the weights after the step, in runs that do not publish them; of those that do, `WeightsPublished` has it."""


class EngineMismatch(Event):
    """For several steps in a row an inference worker's log-probabilities were not the trainer's for the same tokens and weights."""

    subject: ClassVar[str] = "engine.mismatched"
    step: int
    """The weight version that the last of these steps was taken on."""
    worker: str
    """The inference worker; empty where it is not recorded: then any may be meant."""
    kl: float
    """Mean k3 estimate of KL(engine ‖ trainer) over the compared tokens of that step, in nats."""
    vetoed_share: float
    """Share of the compared tokens that differ by more than the veto allows; they are not in `kl`."""
    tokens: int
    """Compared tokens of that step."""
    steps: int
    """Steps in a row."""
    recycle: bool
    """The worker is to make its engine anew and load the current weights; False: only reported."""
    episode: str
    """This and the next four: the token with the largest difference."""
    position: int
    """In its row, counted from 0."""
    token: int
    recorded_logprob: float
    trainer_logprob: float


class WeightsPublished(Event):
    """New weights can be loaded; tokens sampled from now on should carry this version."""

    subject: ClassVar[str] = "weights.published"
    weight_version: int
    location: WeightsLocation


class WeightsLoaded(Event):
    """An inference worker generates with these weights from now on."""

    subject: ClassVar[str] = "weights.loaded"
    worker: str
    weight_version: int
    checksum: str


class EvaluationCompleted(Event):
    """Accuracy on held-out tasks."""

    subject: ClassVar[str] = "evaluation.completed"
    weight_version: int
    """That every inference worker had when it began; `sampled_by` says which versions came after it meanwhile."""
    mode: Literal["sampled", "greedy"]
    tasks: int
    failed: int
    """Episodes that ended without a score; they count in neither direction."""
    accuracy: float
    mean_tokens: float
    worked_share: float
    """Share of answers that show at least one worked step."""
    samples: tuple[dict[str, Any], ...] = ()
    """A few tasks with the answers given."""
    reward_mean: float = 0.0
    common_reward_mean: float = 0.0
    """Over the tasks that every evaluation of the run has, so that two of them can be compared."""
    sampled_by: dict[int, int] = {}
    """How many tokens each weight version sampled; with one version the evaluation is of that version exactly."""


class LossEvaluated(Event):
    """The loss, and what else the algorithm measures, on held-out examples."""

    subject: ClassVar[str] = "loss.evaluated"
    weight_version: int
    examples: int
    metrics: dict[str, float]
    """`loss`, and of pairs `accuracy` and `margin`, too."""


class SaveCheckpoint(Work):
    """Write a checkpoint of the trainer's present state to this folder."""

    subject: ClassVar[str] = "checkpoint.save"
    folder: str
    """Relative to the run's folder, like that of every checkpoint: a run's folder can be moved."""
    reason: str


class CheckpointWritten(Event):
    """The trainer has written a checkpoint that is not yet in its final place."""

    subject: ClassVar[str] = "checkpoint.written"
    folder: str
    step: int
    cursor: int
    """Sequence of the last `BatchFormed` or `ExamplesDrawn` that these weights have been trained on."""


class CheckpointSaved(Event):
    """A checkpoint is complete, synced to disk and under its final name, and the log up to its cursor is on the disk, too."""

    subject: ClassVar[str] = "checkpoint.saved"
    folder: str
    step: int
    cursor: int
    manifest: str = ""
    """Digest of its `manifest.json`, which has that of every file; empty of one written by an earlier version."""
    kept: tuple[int, ...] = ()
    """Steps of the checkpoints that the run can go back to, oldest first, this one included; empty: this one alone is known."""


class CheckpointDamaged(Event):
    """A checkpoint cannot be used; the trainer goes back to the one before it, and takes the steps since then again from the log."""

    subject: ClassVar[str] = "checkpoint.damaged"
    step: int
    folder: str
    """Where it was set aside; empty if there was nothing to set aside."""
    weight_version: int
    """That of the checkpoint that is used instead; 0 for the first weights."""
    reason: str
    """What was found and what was expected."""


class StepDiffered(Event):
    """A step that was taken again came to other weights than the log has, where that can be: on a GPU, or under other settings."""

    subject: ClassVar[str] = "step.differed"
    step: int
    """The weight version that was made again."""
    logged: str
    """The checksum that the log has for it."""
    found: str
    reason: str


class BestCheckpointChosen(Event):
    """Of the checkpoints that were evaluated this one is the best so far; `best` in the folder of checkpoints leads to it."""

    subject: ClassVar[str] = "checkpoint.chosen"
    folder: str
    step: int
    weight_version: int
    """That was evaluated: the checkpoint's own, unless training went on before the trainer could save."""
    metric: str
    """`greedy` or `sampled`: mean reward on held-out tasks; `loss`: on held-out examples."""
    value: float
