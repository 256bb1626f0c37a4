"""Groups from their submission to their batch: what the staleness gate, the task source and the batcher of a run know, in one place.

Their arithmetic itself (`Ledger`, `BatchAssembler`, `TaskSource`); what differs is that tasks come from somebody's loop, and that
batches are formed when it asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from areal_actors.actors.task_source import TaskSource
from areal_actors.controllers.batch import RolloutBatch
from areal_actors.conversations.credit import Credit
from areal_actors.messages import CapacityGranted, EpisodeAbandoned, RunEpisode, TrajectoryDropped, TrajectoryExported
from areal_actors.recipe.recipe import Recipe
from areal_actors.steps.batching import BatchAssembler, PartialGroup, TrajectoryInfo, filter_named
from areal_actors.steps.staleness import Bound, Ledger
from areal_actors.values import Task

NO_END = 2**40
"""Steps; a hand-written loop ends when it likes."""


class Intake:
    """Group n is the n-th task submitted. Nothing here waits or sends."""

    def __init__(self, recipe: Recipe, run: str, prefix: str = "", root: Path = Path()) -> None:
        """`run` is the bus's; `prefix` is put before the names of groups and episodes, where others use it too.

        Raises:
            RecipeError: `batcher.filter` names no function; paths count from `root`.
        """
        self.recipe = recipe
        self.credit = credit_of(recipe)
        self.keeps = filter_named(recipe.batcher.filter, root)
        self.run = run
        self.prefix = prefix
        group_size = recipe.algorithm.group_size
        self.ledger = Ledger(group_size=group_size)
        self.assembler = BatchAssembler(group_size=group_size)
        self.source = TaskSource(self, group_size=group_size, sampling=recipe.sampling, retries=recipe.task.retries, prefix=prefix)
        self.submitted = 0
        self._tasks: dict[int, Task] = {}
        """Of groups that have not ended."""

    def __len__(self) -> int:
        """Tasks that were submitted."""
        return self.submitted

    def task(self, number: int) -> Task:
        """The task of a group."""
        return self._tasks[number]

    def name(self, number: int) -> str:
        """The group's name on the bus."""
        return f"{self.prefix}{number}"

    def number(self, group: str) -> int | None:
        """The number of a group of this name; None if it is somebody else's, or an evaluation."""
        rest = group.removeprefix(self.prefix)
        return int(rest) if group.startswith(self.prefix) and rest.isdecimal() else None

    # ------------------------------------------------------------ the way in

    def submit(self, task: Task) -> int:
        """Take a task; returns its group's number."""
        number = self.submitted
        self._tasks[number] = task
        self.submitted += 1
        return number

    def waiting(self) -> int:
        """Groups that are submitted and not admitted."""
        return self.submitted - self.ledger.granted

    def room(self) -> tuple[int, Bound]:
        """How many groups may be admitted, submitted or not, and which bound binds when none may."""
        return self.ledger.free_groups(self.recipe.staleness_gate, self.recipe.trainer.batch_size, NO_END)

    def admit(self) -> CapacityGranted | None:
        """Let groups that wait start, in their order, while no bound binds."""
        groups = min(self.room()[0], self.waiting())
        if groups <= 0:
            return None
        granted = CapacityGranted(first_group=self.ledger.granted, groups=groups, weight_version=self.ledger.weight_version)
        self.ledger = self.ledger.granted_more(groups)
        return granted

    def begun(self, granted: CapacityGranted) -> list[RunEpisode]:
        """The episodes of groups that may start."""
        return list(self.source.episodes(granted))

    def again(self, lost: EpisodeAbandoned) -> list[RunEpisode]:
        """The next attempt at an episode, if it has one left."""
        return list(self.source.again(lost))

    # ------------------------------------------------------------ what happens

    def exported(self, event: TrajectoryExported, sequence: int) -> int | None:
        """A trajectory has arrived; returns its group's number when that has ended with it."""
        trajectory = event.trajectory
        if (number := self.number(trajectory.group)) is None:
            return None
        self.assembler = self.assembler.exported(number, TrajectoryInfo.of(trajectory, sequence, self.credit))
        self.ledger = self.ledger.episode_ended(number, trajectory.episode, exported=True)
        self.source.ended(trajectory.episode)
        return self._ended(number)

    def lost(self, event: EpisodeAbandoned) -> int | None:
        """An episode was abandoned for good; returns like `exported`."""
        if (number := self.number(event.work.group)) is None:
            return None
        self.assembler = self.assembler.lost(number, event.work.episode)
        self.ledger = self.ledger.episode_ended(number, event.work.episode, exported=False)
        self.source.ended(event.work.episode)
        return self._ended(number)

    def _ended(self, number: int) -> int | None:
        return number if self.has_ended(number) and self._tasks.pop(number, None) is not None else None

    def has_ended(self, number: int) -> bool:
        """Every episode of the group has ended."""
        return number < self.ledger.granted and number not in self.ledger.running

    def weights(self, weight_version: int) -> None:
        """There are new weights."""
        self.ledger = self.ledger.weights_published(weight_version)
        self.assembler = self.assembler.weights_published(weight_version)

    def dropped(self) -> list[TrajectoryDropped]:
        """Let go of complete groups that may not be trained any more."""
        refused = self.assembler.to_drop(self.recipe.batcher, self.recipe.staleness_gate.max_staleness, self.keeps)
        said = [
            TrajectoryDropped(episode=member.episode, group=self.name(number), reason=reason)
            for number, reason in refused.items()
            for member in self.assembler.complete[number].members.values()
        ]
        self.assembler = self.assembler.without(refused)
        for number in refused:
            self.ledger = self.ledger.group_dropped(number)
        return said

    def used_up(self) -> str:
        """Why the filter leaves nothing to train; empty while it may."""
        most = self.recipe.batcher.max_filtered_batches * self.recipe.trainer.batch_size
        if self.assembler.filtered < most:
            return ""
        return f"batcher.filter has dropped {most} groups since the last batch; take other tasks, or raise batcher.max_filtered_batches"

    # ------------------------------------------------------------ the way out

    def complete(self) -> int:
        """Groups that a batch could have now."""
        return len(self.assembler.complete)

    def oldest(self, count: int) -> RolloutBatch | None:
        """A batch of the oldest complete groups, once there are enough; as many batches per weight version as are asked for."""
        assembler = msgspec.structs.replace(self.assembler, batches_formed=0)
        groups = assembler.next_batch(count, dynamic=self.recipe.batcher.dynamic_batch)
        return self._batch(groups) if groups else None

    def of(self, numbers: Sequence[int]) -> RolloutBatch:
        """A batch of those of these groups that are complete, in this order."""
        return self._batch([self.assembler.complete[number] for number in numbers if number in self.assembler.complete])

    def _batch(self, groups: Sequence[PartialGroup]) -> RolloutBatch:
        filtered = self.assembler.filtered
        self.assembler = self.assembler.formed(list(groups))
        self.ledger = self.ledger.batch_formed(frozenset(group.number for group in groups))
        version, masks = self.ledger.weight_version, self.recipe.batcher.exit_policy != "keep"
        return RolloutBatch(
            run=self.run,
            step=version,
            groups=tuple(tuple(member for _, member in sorted(group.members.items())) for group in groups),
            oldest_version=version - self.recipe.staleness_gate.max_staleness if masks else 0,
            trained=self.assembler.trained,
            dropped=self.assembler.dropped,
            filtered_groups=filtered,
        )


def credit_of(recipe: Recipe) -> Credit:
    """How a recipe shares the rewards of an episode among its rows."""
    task = recipe.task
    return Credit.of(task)
