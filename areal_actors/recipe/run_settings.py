"""Tables of a recipe for the run as a whole: its log, its disk, its trackers and its supervisors."""

from __future__ import annotations

from typing import Literal

from areal_actors.core.config import Config, NonNegativeInt, PositiveFloat
from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.privacy.settings import RedactionSettings, RetentionSettings


class LogSettings(Config):
    """`[log]`: retention of the run's log."""

    keep: Literal["all", "needed"] = "needed"
    """`needed` trims a log larger than `max_mb` at its beginning, up to the first event that a kept checkpoint or
    snapshot needs; the run continues and resumes as before, but can be replayed and exported only from there on. `all`
    never trims."""
    max_mb: NonNegativeInt = 4096
    """Size of the log in MiB, including large bodies in `blobs`, up to which it is not trimmed; 0 trims it at every
    checkpoint."""
    compress: bool = False
    """Compress complete blocks (8 MB) of a new log. If such a block is damaged and the server's index is lost, too, the
    server finds no log at all, where otherwise the events before the damage are used; see docs/recovery.md."""
    encrypt: bool = False
    """Have the run's own server encrypt the log, the work queue and the values, with the key in the variable
    `AREAL_STORE_KEY`, or in the file that `AREAL_STORE_KEY_FILE` names. Every command that reads the log needs it. See
    docs/privacy.md for what is not encrypted."""
    conversations: ConversationSettings = ConversationSettings()
    redaction: RedactionSettings = RedactionSettings()
    retention: RetentionSettings = RetentionSettings()


class SupervisorSettings(Config):
    """One line of `[supervisors]`: restart strategy of its children, which are listed in start order."""

    restart: Literal["one_for_one", "rest_for_one", "one_for_all"] = "one_for_one"
    """After a child's death restart it alone, it and all children after it, or all children."""
    children: tuple[str, ...]
    """Names of actors and supervisors."""
    max_restarts: NonNegativeInt = 5
    """Maximum number of restarts within `window_seconds`; beyond it the run stops."""
    window_seconds: PositiveFloat = 60.0
    """Period, in seconds, in which `max_restarts` are counted."""


class DiskSettings(Config):
    """`[disk]`: the disk of the run's folder."""

    min_free_mb: NonNegativeInt = 256
    """MiB that must be free besides those of one checkpoint, whose size follows from the model. With less a run is
    refused at its start; while it runs, below twice this limit there is a warning (`DiskLow`), below the limit the run
    saves a checkpoint and ends. 0 disables the check."""


class TrackSettings(Config):
    """`[track]`: experiment trackers that get the steps and evaluations of the run, each from a process beside it.

    See docs/tracking.md.
    """

    to: tuple[str, ...] = ()
    """Names: `tensorboard`, `wandb`, `mlflow`, `trackio`, and those of other distributions (docs/parts.md)."""
    project: str = ""
    """Project or experiment in the tracker. Empty: what the library's variable names (`WANDB_PROJECT`,
    `MLFLOW_EXPERIMENT_NAME`, `TRACKIO_PROJECT`), or `areal`."""
    python: str = ""
    """Python interpreter that has the trackers' libraries; empty for the current one."""
    stop_seconds: PositiveFloat = 60.0
    """Seconds after the end of the run in which a tracker must have taken the rest; beyond it the tracker is named and
    killed."""
