"""Rollouts for a loop written by hand: tasks go in, batches of finished groups come out, weights go in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.controllers.batch import RolloutBatch
from areal_actors.controllers.driver import Driver
from areal_actors.controllers.evaluation import Evaluation
from areal_actors.controllers.homes import Home
from areal_actors.controllers.tasks import Feed, TaskLike, as_task
from areal_actors.controllers.workflows import Accept
from areal_actors.errors import RolloutError
from areal_actors.messages import EpisodeAbandoned, EpisodeEvaluated, RunEpisode, TrajectoryExported
from areal_actors.recipe.recipe import Recipe
from areal_actors.values import SamplingParams, Task, Trajectory

WAIT_SECONDS = 600.0
"""For rollouts, unless a call says otherwise."""


class AsyncRolloutController(Driver):
    """The names are those that AReaL's users know; `RolloutController` is the same for scripts without a loop of events."""

    def __init__(self, recipe: Recipe, home: Home | None = None, *, root: Path = Path()) -> None:
        """See `Driver`."""
        super().__init__(recipe, home, root=root)
        self._feeds: list[Feed] = []
        self._evaluated = 0

    # ------------------------------------------------------------ tasks in, batches out

    async def submit(
        self, task: TaskLike, workflow: Any = None, *, options: Mapping[str, Any] | None = None, should_accept: Accept = None
    ) -> int:
        """Have a group of episodes run on a task as soon as no bound binds.

        Args:
            task: a row, or a `Task`.
            workflow: what runs it, `RolloutWorkflow` or agent: an instance, a class, a function, or the name of one
                (`path.py:Name`, `package.module:Name`); the recipe's own if not given.
            options: keyword arguments of the class or function.
            should_accept: a function of a scored episode that says whether it is wanted, or its name; see `Acceptance.outcome`.

        Returns:
            The group's number; submissions are numbered from 0.

        Raises:
            AgentError: the workflow is none.
            RecipeError: there is nothing of that name.
            RolloutError: the controller is closed, or this is no task.
        """
        number = await self._enter(task, workflow, options or {}, should_accept)
        await self._admit()
        return number

    async def wait(self, count: int, timeout: float = WAIT_SECONDS) -> RolloutBatch:
        """The oldest `count` groups that have finished and that nobody has taken.

        Raises:
            RolloutTimeout: they did not come within `timeout` seconds; the message says what stands in the way.
            RolloutError: they cannot come: nothing runs or waits, there are no weights, too many episodes failed in a row,
                an actor failed, or the controller is closed.
        """
        self._refuse_impossible(f"wait({count})", count)

        async def enough() -> RolloutBatch | None:
            batch = self._intake.oldest(count)
            if batch is None and self._idle():
                raise RolloutError(f"wait({count}): nothing runs and nothing waits to start: {self._standing()}; submit more tasks")
            return batch

        return await self._formed(await self._until(f"wait({count})", enough, timeout))

    async def rollout_batch(
        self,
        tasks: Iterable[TaskLike],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        should_accept: Accept = None,
        timeout: float = WAIT_SECONDS,
    ) -> RolloutBatch:
        """Run these tasks to their ends; the groups of which an episode is left, in the order of the tasks.

        Arguments are those of `submit`, errors those of `submit` and `wait`.
        """
        given = list(tasks)
        name = f"rollout_batch of {len(given)} tasks"
        self._refuse_impossible(name, len(given))
        numbers = [await self._enter(task, workflow, options or {}, should_accept) for task in given]
        await self._admit()

        async def ended() -> RolloutBatch | None:
            return self._intake.of(numbers) if all(map(self._intake.has_ended, numbers)) else None

        return await self._formed(await self._until(name, ended, timeout))

    async def prepare_batch(
        self,
        tasks: Iterable[Any],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        should_accept: Accept = None,
        timeout: float = WAIT_SECONDS,
    ) -> RolloutBatch:
        """The next batch of `trainer.batch_size` groups, while further tasks are taken and run ahead as far as staleness allows.

        A batch's worth of tasks waits in line when it returns, so that the next groups start as soon as weights have been
        updated, while the loop trains.

        Args:
            tasks: an iterator, or a data loader or list that is gone through again and again; the same object goes on where
                the last call stopped. Lists that it yields are taken apart.
            workflow: like the other arguments, as in `submit`.
            options: see there.
            should_accept: see there.
            timeout: in seconds.

        Raises:
            RolloutError: as for `wait`; or the tasks came to an end first.
        """
        size = self.recipe.trainer.batch_size
        name = "prepare_batch"
        self._refuse_impossible(name, size)
        feed = self._feed(tasks)

        async def enough() -> RolloutBatch | None:
            batch = self._intake.oldest(size)
            while self._intake.waiting() < self._intake.room()[0] + size and (task := feed.next()) is not None:
                await self._enter(task, workflow, options or {}, should_accept)
            await self._admit()
            if batch is None and self._idle():
                raise RolloutError(f"{name}: the tasks ended after {feed.taken}: {self._standing()}")
            return batch

        return await self._formed(await self._until(name, enough, timeout))

    async def evaluate(
        self,
        tasks: Sequence[TaskLike],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        greedy: bool = False,
        timeout: float = WAIT_SECONDS,
    ) -> Evaluation:
        """Run each of these tasks once with the present weights, beside whatever is rolled out, and train nothing of it.

        Neither waits for the other: held-out episodes have places of their own, in the processes of `subprocess` agents too, and
        while others run, at most `evaluation.max_concurrent` do. Arguments and errors as for `rollout_batch`; `greedy` takes the
        most likely tokens.
        """
        name = f"evaluate of {len(tasks)} tasks"
        self._refuse_impossible(name, 0)
        sampling = msgspec.structs.replace(self.recipe.sampling, temperature=0.0) if greedy else self.recipe.sampling
        self._evaluated += 1
        group = f"{self._house.prefix}evaluation-{self._evaluated}"
        works = [self._evaluation(group, number, as_task(task, number), sampling) for number, task in enumerate(tasks)]
        version = self.weight_version
        self._workflows.enter(group, await self._workflows.ready(workflow, options or {}, None, held_out=True))
        ended = self._evaluations[group] = {}

        async def over() -> Evaluation | None:
            if len(ended) < len(works):
                return None
            told = [ended[work.episode] for work in works]
            return Evaluation(
                weight_version=version,
                results=tuple(one for one in told if isinstance(one, EpisodeEvaluated)),
                failed=tuple(one for one in told if isinstance(one, EpisodeAbandoned)),
            )

        try:
            self._held_out.extend(works)
            await self._send()
            return await self._until(name, over, timeout)
        finally:
            del self._evaluations[group]
            self._held_out = deque(work for work in self._held_out if work.group != group)
            self._workflows.leave(group)

    def _evaluation(self, group: str, number: int, task: Task, sampling: SamplingParams) -> RunEpisode:
        return RunEpisode(
            episode=f"{group}.{number}",
            group=group,
            attempts_left=self.recipe.task.retries,
            task=task,
            purpose="evaluate",
            sampling=sampling,
        )

    async def trajectories(self, batch: RolloutBatch) -> list[Trajectory]:
        """The trajectories of a batch of this controller, from the log.

        Raises:
            LogUnavailable: they are not there.
        """
        envelopes = await self._house.bus.read([reference.sequence for reference in batch.references()])
        return [envelope.open(TrajectoryExported).trajectory for envelope in envelopes]

    # ------------------------------------------------------------ in between

    async def _enter(self, task: TaskLike, workflow: Any, options: Mapping[str, Any], should_accept: Accept) -> int:
        """Take a task and make its workflow ready; only what can be run gets a number."""
        self._refuse("submit")
        taken = as_task(task, self._intake.submitted)
        orders = await self._workflows.ready(workflow, options, should_accept)
        number = self._intake.submit(taken)
        self._workflows.enter(self._intake.name(number), orders)
        return number

    def _feed(self, tasks: Iterable[Any]) -> Feed:
        """The same object goes on where it stopped."""
        for feed in self._feeds:
            if feed.loader is tasks:
                return feed
        self._feeds.append(Feed(tasks))
        return self._feeds[-1]

    async def _formed(self, batch: RolloutBatch) -> RolloutBatch:
        """Say in the log what is to be trained."""
        if batch.groups:
            await self._house.say(batch.formed())
        return batch
