"""Parts of large messages: the index decodes only these fields, so that token columns are skipped.

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
    sampled_by: dict[int, int] = {}


class CompletionSpans(msgspec.Struct, gc=False):
    """`TokenColumns` without its columns."""

    versions: tuple[VersionSpan, ...] = ()


class SampledCall(msgspec.Struct, gc=False):
    """`Interaction` without tokens."""

    id: str
    completion: CompletionSpans


class TrajectoryPart(msgspec.Struct, gc=False):
    """`Trajectory` without tokens."""

    episode: str
    group: str
    attempt: int
    task: str
    reward: float
    interactions: tuple[SampledCall, ...]


class RecordedPart(msgspec.Struct, gc=False):
    """`InteractionRecorded`."""

    episode: str
    interaction: str
    completion_tokens: int
    weight_version: int
    purpose: str = "train"
    time: float = 0.0
    attempt: int = 0


class RecordedParts(msgspec.Struct, gc=False):
    """`InteractionsRecorded`."""

    recorded: tuple[RecordedPart, ...]


class ExportedPart(msgspec.Struct, gc=False):
    """`TrajectoryExported`."""

    trajectory: TrajectoryPart
    recorded: tuple[RecordedPart, ...] = ()
