"""Parts of large messages.

The fold of a run's history decodes only these fields, so that token columns and texts are skipped.
None of them refers to itself: the garbage collector need not look at hundreds of thousands of them.
"""

from __future__ import annotations

import msgspec

from areal_actors.core.values import VersionSpan


class TaskName(msgspec.Struct, gc=False):
    """`Task` without its data."""

    id: str


class EpisodeWork(msgspec.Struct, gc=False):
    """`RunEpisode` without the task's data."""

    episode: str
    group: str
    task: TaskName
    attempt: int = 1
    attempts_left: int = 0
    purpose: str = "train"


class ScoredPart(msgspec.Struct, gc=False):
    """`EpisodeScored`."""

    work: EpisodeWork
    output: str = ""


class AbandonedPart(msgspec.Struct, gc=False):
    """`EpisodeAbandoned`."""

    work: EpisodeWork
    reason: str
    detail: str


class EvaluatedPart(msgspec.Struct, gc=False):
    """`EpisodeEvaluated`."""

    work: EpisodeWork
    reward: float
    completion_tokens: int
    output: str = ""
    metrics: dict[str, float] = {}
    sampled_by: dict[int, int] = {}
    ended_by: str = "agent"
    end_cause: str = ""


class CompletionSpans(msgspec.Struct, gc=False):
    """`TokenColumns` without its columns."""

    versions: tuple[VersionSpan, ...] = ()


class SampledCall(msgspec.Struct, gc=False):
    """`Interaction` without tokens."""

    id: str
    completion: CompletionSpans
    finish_reason: str
    parent: str = ""
    prefix: str = ""
    role: str = ""
    reward: float | None = None
    trained: bool = True
    worker: str = ""


class TrajectoryPart(msgspec.Struct, gc=False):
    """`Trajectory` without tokens."""

    episode: str
    group: str
    attempt: int
    task: str
    reward: float
    interactions: tuple[SampledCall, ...]
    metrics: dict[str, float] = {}
    ended_by: str = "agent"
    end_cause: str = ""


class TracePart(msgspec.Struct, gc=False):
    """`ClientTrace`."""

    trace: str
    span: str
    state: str = ""
    baggage: dict[str, str] = {}


NO_TRACE = TracePart(trace="", span="")


class RecordedPart(msgspec.Struct, gc=False):
    """`InteractionRecorded`."""

    episode: str
    interaction: str
    completion_tokens: int
    weight_version: int
    parent: str = ""
    prefix: str = ""
    prefix_break_reason: str = ""
    prompt_tokens: int | None = None
    finish_reason: str = ""
    tool_call_error: str = ""
    trained: bool = True
    purpose: str = "train"
    time: float = 0.0
    attempt: int = 0
    continues: str = ""
    trace: TracePart | None = None


class ConversationPart(msgspec.Struct, gc=False):
    """`ConversationKept` without its calls."""

    episode: str
    attempt: int
    size: int = 0


class RecordedParts(msgspec.Struct, gc=False):
    """`InteractionsRecorded`."""

    recorded: tuple[RecordedPart, ...]


class ExportedPart(msgspec.Struct, gc=False):
    """`TrajectoryExported`."""

    trajectory: TrajectoryPart
    recorded: tuple[RecordedPart, ...] = ()
