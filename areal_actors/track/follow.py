"""Points of a run for trackers: steps and held-out evaluations.

They are read from `metrics.jsonl` as it grows, or from an exported log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from areal_actors.folder.run_folder import RunFolder
from areal_actors.history.run_events import run_events
from areal_actors.messages import EvaluationCompleted, LossEvaluated, RunFinished, RunResumed, RunStarted, StepCompleted
from areal_actors.reader.recorded_history import history_of_file
from areal_actors.reader.run_files import message_of
from areal_actors.track.sender import TrackedRun
from areal_bus.message import Message

EVALUATED = ("tasks", "failed", "accuracy", "reward_mean", "common_reward_mean", "mean_tokens")
"""Numbers of an evaluation, besides those of the reward function."""


class Point(NamedTuple):
    """Metrics of a step, or of an evaluation at the step of its weight version."""

    step: int
    time: float
    metrics: dict[str, float]


Read = Callable[[bool], Iterable[tuple[Message, float]]]
"""Returns the events since the last call, each with its time; True in the last call."""


class FollowedRun:
    """The points of a run in the order in which it wrote them, its recipe, and its end."""

    def __init__(self, name: str, folder: Path, store: Path, read: Read) -> None:
        self.name, self.folder, self.store, self._read = name, folder, store, read
        self.started: RunStarted | None = None
        self.started_at = 0.0
        self.finished: RunFinished | None = None

    def points(self, *, last: bool = False) -> Iterator[Point]:
        """Yields the points since the last call; `last` also takes a line that was not ended."""
        for message, time in self._read(last):
            match message:
                case RunStarted():
                    self.started, self.started_at = message, time
                case RunResumed() if self.started is not None:
                    self.started, self.finished = msgspec.structs.replace(self.started, recipe=message.recipe), None
                case RunFinished():
                    self.finished = message
                case StepCompleted():
                    yield Point(message.step, time, message.metrics)
                case EvaluationCompleted():
                    place = f"evaluation/{message.mode}/"
                    numbers = {f"{place}{field}": float(getattr(message, field)) for field in EVALUATED}
                    of_reward = {f"{place}reward/{name}": value for name, value in message.reward_metrics.items()}
                    yield Point(message.weight_version, time, numbers | of_reward)
                case LossEvaluated():
                    yield Point(
                        message.weight_version,
                        time,
                        {f"evaluation/{name}": value for name, value in message.metrics.items()},
                    )

    def to_tracked_run(self, project: str) -> TrackedRun:
        """Returns the run for its trackers, under the name with which it began.

        A later run of that name renames its folder.
        Its recipe is the logged one, which has neither keys nor passwords.
        """
        assert self.started is not None
        name = self.started.recipe.get("run", self.name)
        return TrackedRun(
            id=f"{name}-{round(self.started_at * 1000)}",
            name=name,
            folder=str(self.folder),
            store=str(self.store),
            project=project,
            config=self.started.recipe,
            started=self.started_at,
        )

    def status(self) -> tuple[str, str]:
        """Returns `finished`, `ended early` or `interrupted`, and the reason.

        They are those of `areal-actors runs` for a run that has ended.
        """
        if self.finished is None:
            return "interrupted", ""
        return ("ended early" if self.finished.error else "finished"), self.finished.error


def follow_folder(place: RunFolder) -> FollowedRun:
    """Returns a run in its folder, live or not."""
    return FollowedRun(place.path.name, place.path, place.path.parent, _Lines(place.metrics).read)


def follow_file(path: Path) -> FollowedRun:
    """Returns a run in its exported log. Of a damaged log the events before the damage are read."""
    return FollowedRun(path.name, path.with_name(f"{path.name}.track"), path.parent, lambda _: _events(path))


def _events(path: Path) -> Iterator[tuple[Message, float]]:
    return ((event, time) for _, time, event in run_events(history_of_file(path)))


class _Lines:
    """Reads `metrics.jsonl` on from where it was read to.

    A line that is not ended is read when it is, or when nothing more comes.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0

    def read(self, last: bool) -> Iterator[tuple[Message, float]]:  # noqa: FBT001 - a `Read`
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n") and not last:
                    return
                self.position += len(line)
                if (row := _row(line)) is not None:
                    yield row


def _row(line: bytes) -> tuple[Message, float] | None:
    """Returns the event of a line; None if it is truncated, damaged or of another version."""
    try:
        row: Any = json.loads(line)
        message = message_of(row) if isinstance(row, dict) else None
    except (ValueError, msgspec.ValidationError):
        return None
    return None if message is None else (message, float(row.get("time", 0.0)))
