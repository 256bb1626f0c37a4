"""The asynchronous rollout controller: takes tasks and weights, returns batches of finished groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from areal_actors.core.errors import RolloutError
from areal_actors.core.values import Trajectory
from areal_actors.library.controllers.batch import RolloutBatch
from areal_actors.library.controllers.driver import Driver
from areal_actors.library.controllers.evaluation import Evaluation
from areal_actors.library.controllers.tasks import Feed, TaskLike, as_task
from areal_actors.library.controllers.workflows import Accept
from areal_actors.messages import EpisodeAbandoned, EpisodeEvaluated, TrajectoryExported
from areal_actors.tasks.attempts import first_attempt

WAIT_SECONDS = 600.0
"""Default timeout of rollouts."""


class AsyncRolloutController(Driver):
    """Method names follow AReaL; `RolloutController` is the blocking version for scripts without an event loop."""

    # ------------------------------------------------------------ tasks and batches

    async def submit(
        self,
        task: TaskLike,
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        should_accept: Accept = None,
        group_size: int | None = None,
    ) -> int:
        """Run a group of episodes on a task as soon as no limit is reached.

        Args:
            task: a row, or a `Task`.
            workflow: a `RolloutWorkflow` or agent: an instance, a class, a function, or its name (`path.py:Name`,
                `package.module:Name`); by default the recipe's.
            options: keyword arguments of the class or function.
            should_accept: a predicate on scored episodes, or its name; see `Acceptance.outcome`.
            group_size: number of episodes, by default `algorithm.group_size`.

        Returns:
            The group's number; submissions are numbered from 0.

        Raises:
            AgentError: the workflow is invalid.
            RecipeError: there is nothing of that name.
            RolloutError: the controller is closed, or the task is invalid.
        """
        number = await self._enter(task, workflow, options or {}, should_accept, group_size)
        await self._admit()
        return number

    async def wait(self, count: int, timeout: float = WAIT_SECONDS) -> RolloutBatch:
        """Returns the oldest `count` finished groups that are in no batch yet.

        Raises:
            RolloutTimeout: they did not finish within `timeout` seconds; the message describes the state.
            RolloutError: they cannot finish: nothing runs or waits, there are no weights, too many episodes failed in a
                row, an actor failed, or the controller is closed.
        """
        self._check_possible(f"wait({count})", count)

        async def enough() -> RolloutBatch | None:
            batch = self._scheduler.oldest(count)
            if batch is None and self._idle():
                raise RolloutError(
                    f"wait({count}): nothing runs and nothing waits to start: {self._describe_progress()}; submit more"
                    " tasks"
                )
            return batch

        return await self._publish_batch(await self._until(f"wait({count})", enough, timeout))

    async def collect(
        self, numbers: Sequence[int], count: int, timeout: float = WAIT_SECONDS
    ) -> tuple[dict[int, int | None], RolloutBatch]:
        """Returns a batch of the first `count` of these groups that have ended.

        A group whose episodes all failed or were rejected has ended, too.

        Returns:
            For each number its place in the batch, None without a trajectory; and the batch.

        Raises like `wait`.
        """
        name = f"collect({count})"
        self._check_running(name)

        async def ended_groups() -> list[int] | None:
            ended = [number for number in numbers if self._scheduler.has_ended(number)]
            return ended[:count] if len(ended) >= count else None

        ended = await self._until(name, ended_groups, timeout)
        kept = [number for number in ended if number in self._scheduler.assembler.complete]
        places = {number: kept.index(number) if number in kept else None for number in ended}
        return places, await self._publish_batch(self._scheduler.of(kept))

    async def rollout_batch(
        self,
        tasks: Iterable[TaskLike],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        should_accept: Accept = None,
        timeout: float = WAIT_SECONDS,
        group_size: int | None = None,
    ) -> RolloutBatch:
        """Run these tasks to completion; returns the groups with at least one trajectory, in the order of the tasks.

        Arguments are those of `submit`, errors those of `submit` and `wait`.
        """
        given = list(tasks)
        name = f"rollout_batch of {len(given)} tasks"
        self._check_possible(name, len(given))
        numbers = [await self._enter(task, workflow, options or {}, should_accept, group_size) for task in given]
        await self._admit()

        async def ended_batch() -> RolloutBatch | None:
            return self._scheduler.of(numbers) if all(map(self._scheduler.has_ended, numbers)) else None

        return await self._publish_batch(await self._until(name, ended_batch, timeout))

    async def prepare_batch(
        self,
        tasks: Iterable[Any],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        should_accept: Accept = None,
        timeout: float = WAIT_SECONDS,
        group_size: int | None = None,
    ) -> RolloutBatch:
        """Returns the next batch of `trainer.batch_size` groups; further tasks run ahead as staleness allows.

        On return, the tasks of a further batch are queued, so that the next groups start as soon as weights are
        updated, while the loop trains.

        Args:
            tasks: an iterator, or a data loader or list that is repeated; the same object continues where
                the last call stopped. Lists that it yields are flattened.
            workflow: as in `submit`.
            options: as in `submit`.
            should_accept: as in `submit`.
            timeout: in seconds.
            group_size: as in `submit`.

        Raises:
            RolloutError: as for `wait`; or the tasks ended first.
        """
        size = self.recipe.trainer.batch_size
        name = "prepare_batch"
        self._check_possible(name, size)
        feed = self._feed(tasks)

        async def enough() -> RolloutBatch | None:
            batch = self._scheduler.oldest(size)
            while self._scheduler.waiting() < self._scheduler.room()[0] + size and (task := feed.next()) is not None:
                await self._enter(task, workflow, options or {}, should_accept, group_size)
            await self._admit()
            if batch is None and self._idle():
                raise RolloutError(f"{name}: the tasks ended after {feed.taken}: {self._describe_progress()}")
            return batch

        return await self._publish_batch(await self._until(name, enough, timeout))

    async def evaluate(
        self,
        tasks: Sequence[TaskLike],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        greedy: bool = False,
        timeout: float = WAIT_SECONDS,
    ) -> Evaluation:
        """Run each of these tasks once with the present weights, concurrently with rollouts, without training on them.

        Held-out episodes have separate slots, also in the processes of `subprocess` agents; while rollouts are running,
        at most `evaluation.max_concurrent` of them. Arguments and errors as for `rollout_batch`; `greedy` takes the
        most likely tokens.
        """
        name = f"evaluate of {len(tasks)} tasks"
        self._check_possible(name, 0)
        sampling = msgspec.structs.replace(self.recipe.sampling, temperature=0.0) if greedy else self.recipe.sampling
        self._evaluated += 1
        group = f"{self._host.prefix}evaluation-{self._evaluated}"
        works = [
            first_attempt(group, number, as_task(task, number), sampling, self.recipe.task.retries, purpose="evaluate")
            for number, task in enumerate(tasks)
        ]
        version = self.weight_version
        self._workflows.enter(group, await self._workflows.ready(workflow, options or {}, None, held_out=True))
        ended = self._evaluations[group] = {}

        async def over() -> Evaluation | None:
            if len(ended) < len(works):
                return None
            outcomes = [ended[work.episode] for work in works]
            return Evaluation(
                weight_version=version,
                results=tuple(outcome for outcome in outcomes if isinstance(outcome, EpisodeEvaluated)),
                failed=tuple(one for one in outcomes if isinstance(one, EpisodeAbandoned)),
            )

        try:
            self._held_out.extend(works)
            await self._send()
            return await self._until(name, over, timeout)
        finally:
            del self._evaluations[group]
            self._held_out = deque(work for work in self._held_out if work.group != group)
            self._workflows.leave(group)

    async def trajectories(self, batch: RolloutBatch) -> list[Trajectory]:
        """Returns the trajectories of a batch of this controller, from the log.

        Raises:
            LogUnavailable: they are missing.
        """
        envelopes = await self._host.bus.read([reference.sequence for reference in batch.references()])
        return [envelope.open(TrajectoryExported).trajectory for envelope in envelopes]

    def is_healthy(self) -> bool:
        """True while episodes can run: it is started, not closed, and no actor has failed."""
        return not self._closed and not self._host.failed.done()

    # ------------------------------------------------------------ helpers

    async def _enter(
        self,
        task: TaskLike,
        workflow: Any,
        options: Mapping[str, Any],
        should_accept: Accept,
        group_size: int | None = None,
    ) -> int:
        """Add a task and prepare its workflow; only a runnable task gets a number."""
        self._check_running("submit")
        if group_size is not None and group_size < 1:
            raise RolloutError(f"group_size is {group_size}; a group has at least one episode")
        taken = as_task(task, self._scheduler.submitted)
        spec = await self._workflows.ready(workflow, options, should_accept, group_size=group_size)
        number = self._scheduler.submit(taken, group_size)
        self._workflows.enter(self._scheduler.name(number), spec)
        return number

    def _feed(self, tasks: Iterable[Any]) -> Feed:
        """Returns the feed of these tasks, so that the same object continues where it stopped."""
        for feed in self._feeds:
            if feed.loader is tasks:
                return feed
        self._feeds.append(Feed(tasks))
        return self._feeds[-1]

    async def _publish_batch(self, batch: RolloutBatch) -> RolloutBatch:
        """Publish the batch to the log."""
        if batch.groups:
            await self._host.publish(batch.to_event())
        return batch
