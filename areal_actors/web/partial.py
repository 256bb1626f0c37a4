"""Parts of large messages: the index decodes only these fields, so that token columns are skipped."""

from __future__ import annotations

import msgspec

from areal_actors.core.values import VersionSpan


class TaskName(msgspec.Struct):
    """`Task` without its data."""

    id: str


class EpisodeWork(msgspec.Struct):
    """`RunEpisode` without the task's data."""

    episode: str
    group: str
    task: TaskName
    attempt: int = 1
    attempts_left: int = 0
    purpose: str = "train"


class ScoredPart(msgspec.Struct):
    """`EpisodeScored`."""

    work: EpisodeWork


class AbandonedPart(msgspec.Struct):
    """`EpisodeAbandoned`."""

    work: EpisodeWork
    reason: str
    detail: str


class EvaluatedPart(msgspec.Struct):
    """`EpisodeEvaluated`."""

    work: EpisodeWork
    reward: float
    completion_tokens: int
    sampled_by: dict[int, int] = {}


class CompletionSpans(msgspec.Struct):
    """`TokenColumns` without its columns."""

    versions: tuple[VersionSpan, ...] = ()


class SampledCall(msgspec.Struct):
    """`Interaction` without tokens."""

    id: str
    completion: CompletionSpans


class TrajectoryPart(msgspec.Struct):
    """`Trajectory` without tokens."""

    episode: str
    group: str
    attempt: int
    task: str
    reward: float
    interactions: tuple[SampledCall, ...]


class ExportedPart(msgspec.Struct):
    """`TrajectoryExported`."""

    trajectory: TrajectoryPart


class RecordedPart(msgspec.Struct):
    """`InteractionRecorded`."""

    episode: str
    interaction: str
    completion_tokens: int
    weight_version: int
    purpose: str = "train"
