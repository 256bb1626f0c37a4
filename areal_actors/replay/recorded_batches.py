"""Batches that a batcher forms from the recorded trajectories of a run, under the recorded settings or others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.batching.assembler import group_filter
from areal_actors.batching.batcher import Batcher
from areal_actors.core.errors import RewardError
from areal_actors.core.values import TrainingSequence, Trajectory, WeightsLocation
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeScored,
    FilterExhausted,
    OffPolicyChanged,
    RunEpisode,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.replay.rescore import Rescored, rescore
from areal_actors.replay.rescored_parts import PartRewards
from areal_actors.rewards import Reward
from areal_actors.runtime.log_context import LogContext
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit
from areal_actors.tasks.roles import read_role
from areal_bus.base import Envelope
from areal_bus.message import Event

RECEIVED = (CapacityGranted, EpisodeScored, TrajectoryExported, EpisodeAbandoned, WeightsPublished, OffPolicyChanged)
"""Events of the log that batches follow from."""


class FormedBatch(msgspec.Struct, frozen=True):
    """A batch, with the event of the log that completed it."""

    event: BatchFormed
    after: int
    """Sequence of the event of the log that completed the batch."""


class RecordedBatches:
    """A batcher that receives the trajectories of a log.

    Step n begins when the log has published version n and batch n − 1 is formed: a batch that is formed later than the
    recorded one delays the next, one that is formed earlier waits for the recorded weights.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        reward: Reward | None = None,
        tasks: Mapping[str, Mapping[str, Any]] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`reward` scores the recorded outputs again; None keeps the recorded rewards.

        `tasks`: rows by episode, with the verdicts of judges, for the reward. `folder`: of the run, for rewards of
        spans.
        """
        self.recipe, self.credit = recipe, Credit.of(recipe.task)
        self.batches: list[FormedBatch] = []
        self.trajectories: dict[int, Trajectory] = {}
        """Trajectories by sequence."""
        self.dropped: Counter[str] = Counter()
        """Groups that were dropped, by reason."""
        self.unscored: dict[str, str] = {}
        """Episodes that the reward function failed on, each with the reason."""
        self.exhausted = ""
        """Reason why the filter would have ended the run; empty if it would not."""
        self.has_other_reward = reward is not None
        self._reward, self._tasks, self._parts = reward, tasks, PartRewards(folder)
        self._scores: dict[str, tuple[Rescored, RunEpisode]] = {}
        self._failed: dict[str, EpisodeAbandoned] = {}
        self._roles: dict[str, str] = {}
        """Roles of scored episodes, of whose tasks the run may have read none."""
        self._published = -1
        """Latest version that the log has published."""
        self._dropped_groups: set[str] = set()
        self._batcher = Batcher(
            recipe.batcher,
            group_size=recipe.algorithm.group_size,
            batch_size=recipe.trainer.batch_size,
            max_staleness=recipe.staleness_gate.max_staleness,
            steps=recipe.steps,
            keeps=group_filter(recipe.batcher, Path.cwd()),
            credit=self.credit,
            baseline_decay=recipe.algorithm.baseline_decay,
        )

    async def receive(self, envelope: Envelope, message: Event) -> None:
        """Receive the next event of the log."""
        if isinstance(message, EpisodeScored):
            if (field := self.recipe.algorithm.role_field) and message.work.purpose == "train":
                self._roles[message.work.episode] = read_role(message.work.task.data, field)
            await self._score(envelope, message)
        elif isinstance(message, WeightsPublished):
            self._published = max(self._published, message.weight_version)
            self._parts.model = message.location.model
        elif isinstance(message, TrajectoryExported):
            await self._hand_over_export(envelope, message)
        elif isinstance(message, CapacityGranted | EpisodeAbandoned | OffPolicyChanged):
            await self._hand_over(envelope, message)
        while self._batcher.assembler.weight_version < min(self._published, len(self.batches)):
            version = self._batcher.assembler.weight_version + 1
            await self._hand_over(envelope, _published_event(version))

    async def _score(self, envelope: Envelope, message: EpisodeScored) -> None:
        if self._reward is None or message.work.purpose != "train":
            return
        score = await rescore(envelope, self._reward, self._tasks)
        if score is None:
            return
        work = msgspec.structs.replace(message.work, attempts_left=0)
        if score.now is None:
            self.unscored[score.episode] = score.error
            self._failed[score.episode] = EpisodeAbandoned(work=work, reason="reward", detail=score.error)
        else:
            self._scores[score.episode] = score, work

    async def _hand_over_export(self, envelope: Envelope, message: TrajectoryExported) -> None:
        trajectory = message.trajectory
        if (failed := self._failed.pop(trajectory.episode, None)) is not None:
            await self._hand_over(envelope, failed)
            return
        if (scored := self._scores.pop(trajectory.episode, None)) is not None and trajectory.interactions:
            score, work = scored
            try:
                trajectory = self._parts.replace(trajectory, score)
            except RewardError as error:
                self.unscored[score.episode] = str(error)
                await self._hand_over(envelope, EpisodeAbandoned(work=work, reason="reward", detail=str(error)))
                return
        role = self._roles.pop(trajectory.episode, trajectory.role)
        trajectory = msgspec.structs.replace(trajectory, role=role)
        self.trajectories[envelope.sequence] = trajectory
        await self._hand_over(envelope, TrajectoryExported(trajectory=trajectory))

    async def _hand_over(self, envelope: Envelope, message: Event) -> None:
        async for emitted in self._batcher.receive(message, LogContext(envelope, {})):
            if isinstance(emitted, BatchFormed):
                self.batches.append(FormedBatch(emitted, envelope.sequence))
            elif isinstance(emitted, TrajectoryDropped) and emitted.group not in self._dropped_groups:
                self._dropped_groups.add(emitted.group)
                self.dropped[emitted.reason] += 1
            elif isinstance(emitted, FilterExhausted):
                self.exhausted = self.exhausted or emitted.reason

    def sequences(self, batch: BatchFormed) -> list[TrainingSequence]:
        """Training sequences of a batch, with this credit and these rewards."""
        return [
            sequence
            for number, group in enumerate(batch.groups)
            for member in group
            for sequence in sequences_of(
                self.trajectories[member.sequence], number, batch.oldest_version, self.credit, member.baselines
            )
        ]


def _published_event(version: int) -> WeightsPublished:
    return WeightsPublished(weight_version=version, location=WeightsLocation(folder="", checksum="", model=""))
