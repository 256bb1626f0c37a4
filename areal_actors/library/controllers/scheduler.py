"""Schedules groups from submission to batch: the state of a run's staleness gate, task source and batcher in one place.

Uses their own code (`Ledger`, `BatchAssembler`); but tasks come from a hand-written loop, only submitted groups are
admitted, and batches are formed on request, of any size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from areal_actors.batching.assembler import BatchAssembler, PartialGroup, TrajectoryInfo, group_filter
from areal_actors.core.values import Task
from areal_actors.library.controllers.batch import RolloutBatch
from areal_actors.messages import EpisodeAbandoned, RunEpisode, TrajectoryDropped, TrajectoryExported
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.credit import Credit
from areal_actors.staleness.ledger import Bound, Ledger
from areal_actors.tasks.attempts import first_attempt

NO_END = 2**40
"""Number of steps: unlimited in a hand-written loop."""


class RolloutScheduler:
    """Group n is the n-th submitted task. Pure state: nothing here waits or publishes."""

    def __init__(self, recipe: Recipe, run: str, prefix: str = "", root: Path = Path()) -> None:
        """`run`: name of the run on the bus; `prefix`: prefix of the names of groups and episodes on a shared bus.

        Raises:
            RecipeError: `batcher.filter` names no function; paths are relative to `root`.
        """
        self.recipe = recipe
        self.credit = Credit.of(recipe.task)
        self.keeps = group_filter(recipe.batcher, root)
        self.run = run
        self.prefix = prefix
        self.ledger = Ledger(group_size=recipe.algorithm.group_size)
        self.assembler = BatchAssembler(group_size=recipe.algorithm.group_size)
        self.submitted = 0
        self._waiting: deque[Task] = deque()
        """Tasks of groups that are not admitted."""

    def name(self, number: int) -> str:
        """Returns the group's name on the bus."""
        return f"{self.prefix}{number}"

    def number(self, group: str) -> int | None:
        """Returns the number of a group of this name; None if it belongs to another controller or an evaluation."""
        rest = group.removeprefix(self.prefix)
        return int(rest) if group.startswith(self.prefix) and rest.isdecimal() else None

    # ------------------------------------------------------------ submission

    def submit(self, task: Task, group_size: int | None = None) -> int:
        """Add a task; returns its group's number. `group_size`: episodes of this group, by default the recipe's."""
        if group_size not in (None, self.recipe.algorithm.group_size):
            self.ledger.sizes[self.submitted] = self.assembler.sizes[self.submitted] = group_size
        self._waiting.append(task)
        self.submitted += 1
        return self.submitted - 1

    def waiting(self) -> int:
        """Returns the number of groups submitted but not admitted."""
        return len(self._waiting)

    def room(self) -> tuple[int, Bound]:
        """Returns the number of groups that may be admitted, submitted or not, and the limit reached if none may."""
        gate, batch_size = self.recipe.staleness_gate, self.recipe.trainer.batch_size
        return self.ledger.free_groups(gate.max_staleness, gate.most_concurrent(batch_size), batch_size, NO_END)

    def admit(self) -> list[RunEpisode]:
        """Admit waiting groups in order, until a limit is reached; returns their episodes."""
        first = self.ledger.granted
        self.ledger.grant(min(self.room()[0], self.waiting()))
        if self.recipe.batcher.exit_policy == "wait":
            self.assembler.record_grant(first, self.ledger.granted - first, self.ledger.weight_version)
        return [
            first_attempt(self.name(number), member, task, self.recipe.sampling, self.recipe.task.retries)
            for number, task in [(number, self._waiting.popleft()) for number in range(first, self.ledger.granted)]
            for member in range(self.ledger.sizes.get(number, self.recipe.algorithm.group_size))
        ]

    # ------------------------------------------------------------ outcomes

    def add_trajectory(self, event: TrajectoryExported, sequence: int) -> int | None:
        """Add a trajectory; returns its group's number if it was the group's last episode."""
        trajectory = event.trajectory
        if (number := self.number(trajectory.group)) is None:
            return None
        self.assembler.add_trajectory(number, TrajectoryInfo.of(trajectory, sequence, self.credit))
        self.ledger.episode_ended(number, trajectory.episode, exported=True)
        return number if self.has_ended(number) else None

    def record_lost_episode(self, event: EpisodeAbandoned) -> int | None:
        """Note an episode that failed after all retries; returns like `exported`."""
        if (number := self.number(event.work.group)) is None:
            return None
        self.assembler.record_lost_episode(number, event.work.episode)
        self.ledger.episode_ended(number, event.work.episode, exported=False)
        return number if self.has_ended(number) else None

    def has_ended(self, number: int) -> bool:
        """Returns True if every episode of the group has ended."""
        return number < self.ledger.granted and number not in self.ledger.running

    def weights(self, weight_version: int) -> None:
        """Note a new weight version."""
        self.ledger.weights_published(weight_version)
        self.assembler.weights_published(weight_version)

    def drop_groups(self) -> list[TrajectoryDropped]:
        """Drop complete groups that must not be trained any more; returns the events."""
        refused = self.assembler.to_drop(self.recipe.batcher, self.recipe.staleness_gate.max_staleness, self.keeps)
        events = [
            TrajectoryDropped(episode=member.episode, group=self.name(number), reason=reason)
            for number, reason in refused.items()
            for member in self.assembler.complete[number].members.values()
        ]
        self.assembler.without(refused)
        for number in refused:
            self.ledger.group_dropped(number)
        return events

    def filter_error(self) -> str:
        """Returns an error if the filter drops everything; empty otherwise."""
        most = self.recipe.batcher.max_filtered_batches * self.recipe.trainer.batch_size
        if self.assembler.filtered < most:
            return ""
        return (
            f"batcher.filter has dropped {most} groups since the last batch; take other tasks, or raise"
            " batcher.max_filtered_batches"
        )

    # ------------------------------------------------------------ batches

    def oldest(self, count: int) -> RolloutBatch | None:
        """Returns a batch of the oldest complete groups, None until there are enough.

        There may be any number of batches per weight version.
        """
        assembler = msgspec.structs.replace(self.assembler, batches_formed=0)
        bound, dynamic = self.recipe.staleness_gate.max_staleness, self.recipe.batcher.dynamic_batch
        groups = assembler.next_batch(count, max_staleness=bound, dynamic=dynamic)
        return self._batch(groups) if groups else None

    def of(self, numbers: Sequence[int]) -> RolloutBatch:
        """Returns a batch of the complete groups among these, in this order."""
        return self._batch([self.assembler.complete[number] for number in numbers if number in self.assembler.complete])

    def _batch(self, groups: Sequence[PartialGroup]) -> RolloutBatch:
        filtered = self.assembler.filtered
        self.assembler.form_batch(list(groups))
        self.ledger.batch_formed(frozenset(group.number for group in groups))
        version, masks = self.ledger.weight_version, self.recipe.batcher.exit_policy != "keep"
        return RolloutBatch(
            run=self.run,
            step=version,
            groups=tuple(group.trajectories() for group in groups),
            oldest_version=version - self.recipe.staleness_gate.max_staleness if masks else 0,
            trained=self.assembler.trained,
            dropped=self.assembler.dropped,
            filtered_groups=filtered,
            numbers=tuple(group.number for group in groups),
        )
