"""Rows of the run: launches, steps, weights, evaluations, checkpoints, actors, load and notices."""

from __future__ import annotations

from typing import ClassVar

from areal_actors.history.row import HistoryRow

SCHEMA_VERSION = 4
"""Version of the tables and of the fold that fills them; a database of another version is built again."""


class ProgressRecord(HistoryRow, kw_only=True, gc=False):
    """Part of the log that was read: one row."""

    table: ClassVar[str] = "progress"
    key: ClassVar[str] = "id"
    id: int = 1
    schema_version: int = SCHEMA_VERSION
    run: str = ""
    """Name of the run."""
    first: int = 0
    """Position of the first event that was read; above 1 if the log had been trimmed."""
    last: int = 0
    """Position of the last event that was read."""
    last_id: str = ""
    """Id of that event, which identifies the log."""
    began: float = 0.0
    """Time of the first event that was read."""
    now: float = 0.0
    """Time of the latest event."""
    repeated_ends: int = 0
    """Ends of attempts that repeat an earlier one, and count as nothing."""
    model: str = ""
    """Folder of the model with its tokenizer, relative to the run's if it is inside."""
    log_files: str = ""
    """Sizes and times of the log's files when they were read, of a run that is over; empty while it is live."""


class LaunchRecord(HistoryRow, kw_only=True, gc=False):
    """The start of the run, or a resumption."""

    table: ClassVar[str] = "run"
    key: ClassVar[str] = "started"
    started: int
    """Position of its event."""
    started_at: float
    resumed: int
    """1 for a resumption, 0 for the first start."""
    profile: str
    """Name of the recipe's profile; empty for a resumption."""
    reason: str
    """Reason for the choice of the profile, or the settings that differ from before."""
    recipe: str
    """The resolved recipe, JSON."""
    finished_at: float | None = None
    """Time of its end; null while it is live, and if it was killed."""
    steps: int | None = None
    """Number of steps at its end."""
    error: str = ""
    """Error with which it ended; empty if it completed its recipe."""


class StepRecord(HistoryRow, kw_only=True, gc=False):
    """A completed step."""

    table: ClassVar[str] = "step"
    key: ClassVar[str] = "completed"
    indexes: ClassVar[tuple[str, ...]] = ("step",)
    completed: int
    """Position of its event."""
    completed_at: float
    changed: int
    """Position of the last event that changed the row."""
    step: int
    """Step, counted from 1."""
    replaced: int | None = None
    """Position of the event by which a restarted trainer repeated this step or an earlier one; null for the step that
    counts."""
    sequences_checksum: str = ""
    """Checksum of the sampled tokens in the loss."""
    weights_checksum: str = ""
    """Checksum of the weights after it, in runs that do not publish them."""


class MetricRecord(HistoryRow, kw_only=True, gc=False):
    """A metric of a step."""

    table: ClassVar[str] = "metric"
    key: ClassVar[str] = "completed, name"
    completed: int
    """`step.completed`."""
    name: str
    value: float | None
    """Null for NaN. Units are in the documentation of metrics."""


class VersionRecord(HistoryRow, kw_only=True, gc=False):
    """Published weights."""

    table: ClassVar[str] = "version"
    key: ClassVar[str] = "published"
    published: int
    """Position of its event."""
    published_at: float
    weight_version: int
    """Number of steps that made the weights."""
    checksum: str
    """Checksum of all tensors."""
    folder: str
    """Folder of their files."""
    model: str
    """Model folder with configuration and tokenizer."""


class LoadRecord(HistoryRow, kw_only=True, gc=False):
    """Weights that an inference worker loaded."""

    table: ClassVar[str] = "load"
    key: ClassVar[str] = "loaded"
    loaded: int
    """Position of its event."""
    loaded_at: float
    worker: str
    weight_version: int
    checksum: str
    channel: str
    """`folder`, `broadcast`, `tensors`, `delta` or `adapter`."""
    sent_bytes: int
    """Bytes sent to an inference server; 0 if it read files."""
    whole_bytes: int
    """Bytes of all tensors of the version; 0 if it read files."""


class EvaluationRecord(HistoryRow, kw_only=True, gc=False):
    """A result on held-out tasks or examples."""

    table: ClassVar[str] = "evaluation"
    key: ClassVar[str] = "completed"
    completed: int
    """Position of its event, which has some of the answers."""
    completed_at: float
    weight_version: int
    mode: str
    """`sampled` or `greedy`; `examples` for losses of held-out examples."""
    tasks: int
    """Number of tasks or examples."""
    failed: int | None = None
    """Episodes without a score."""
    accuracy: float | None = None
    """Share of scored episodes with a reward of at least 0.5."""
    reward_mean: float | None = None
    common_reward_mean: float | None = None
    """Mean reward over the tasks of all evaluations of the run."""
    mean_tokens: float | None = None
    """Mean sampled tokens of an episode."""
    ended_by_model: float | None = None
    """Share of the scored episodes that the model ended."""
    metrics: str = "{}"
    """Means of the reward function's further numbers, or the losses, by name, JSON."""
    sampled_by: str = "{}"
    """Sampled tokens by weight version, JSON."""


class SavedRecord(HistoryRow, kw_only=True, gc=False):
    """A committed checkpoint."""

    table: ClassVar[str] = "checkpoint"
    key: ClassVar[str] = "committed"
    committed: int
    """Position of its event."""
    committed_at: float
    step: int
    folder: str
    """Relative to the run's folder."""
    manifest: str
    """Digest of its manifest."""
    cursor: int
    """Position of the last batch that its weights were trained on."""
    kept: str
    """Steps of the checkpoints available then, JSON."""


class ActorRecord(HistoryRow, kw_only=True, gc=False):
    """Start, failure or stop of an actor."""

    table: ClassVar[str] = "actor"
    key: ClassVar[str] = "changed"
    changed: int
    """Position of the event."""
    changed_at: float
    actor: str
    process: str
    change: str
    """`started`, `failed` or `stopped`."""
    pid: int | None = None
    """Process id of a started one."""
    detail: str = ""
    """Reason of a failure."""


class LoadSampleRecord(HistoryRow, kw_only=True, gc=False):
    """Load of the run over a window."""

    table: ClassVar[str] = "load_sample"
    key: ClassVar[str] = "measured"
    measured: int
    """Position of its event."""
    measured_at: float
    seconds: float
    """Length of the window."""
    trainer_waits: float
    """Share of the window in which the trainer waited for a batch."""
    episodes: float
    """Mean number of episodes that may run and are not scored."""
    allowed: int
    """Episodes that the gate lets run at once."""
    roles: str
    """Workers, slots, busy slots, waiting work and CPU cores by role, JSON."""
    gateway_cpu: float
    """CPU cores that the gateway uses."""
    engine_full: int
    """1 if an engine was full at the end of the window."""


class NoticeRecord(HistoryRow, kw_only=True, gc=False):
    """Any other event, whole."""

    table: ClassVar[str] = "notice"
    key: ClassVar[str] = "position"
    indexes: ClassVar[tuple[str, ...]] = ("kind",)
    position: int
    at: float
    kind: str
    """Name of the event, such as `engine.lost`; `events.md` lists them."""
    severity: str
    """`error`, `warning` or `info`."""
    sender: str
    """Actor that published it."""
    fields: str
    """Fields of the event, JSON."""


class AnswerRecord(HistoryRow, kw_only=True, gc=False):
    """Result that a command computed from the whole log; it holds as long as the log does not grow.

    Other programs do not read it.
    """

    table: ClassVar[str] = "answer"
    key: ClassVar[str] = "name"
    name: str
    """Command and version of its answer."""
    last: int
    """Position of the last event that it read."""
    value: bytes
