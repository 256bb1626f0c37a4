"""The rollout controller for plain scripts: the same calls, each returning when it is done, with the event loop in a thread.

Rollouts go on in that thread while the script trains: the loop is asynchronous although it does not look so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from areal_actors.controllers.batch import RolloutBatch
from areal_actors.controllers.driver import LOAD_SECONDS
from areal_actors.controllers.evaluation import Evaluation
from areal_actors.controllers.homes import Home
from areal_actors.controllers.rollout import WAIT_SECONDS, AsyncRolloutController
from areal_actors.controllers.tasks import TaskLike
from areal_actors.controllers.workflows import Accept
from areal_actors.messages import EpisodeAbandoned, WeightsPublished
from areal_actors.recipe.recipe import Recipe
from areal_actors.values import Trajectory, WeightsLocation

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="rollouts")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises; interrupted, it is cancelled."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        """End whatever runs, and the loop."""
        self.run(_ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _ended() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


class RolloutController:
    """`AsyncRolloutController` for scripts; what each method does, takes and raises stands there. Use it in a `with`."""

    def __init__(self, recipe: Recipe, home: Home | None = None, *, root: Path = Path()) -> None:
        """See `AsyncRolloutController`."""
        self._controller = AsyncRolloutController(recipe, home, root=root)
        self._thread: LoopThread | None = None

    def start(self) -> Self:
        """Start the actors."""
        self._thread = LoopThread()
        try:
            self._thread.run(self._controller.start())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End them."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.run(self._controller.close())
            thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def weight_version(self) -> int:
        """The newest weights that were handed in; -1 before the first."""
        return self._controller.weight_version

    @property
    def abandoned(self) -> Sequence[EpisodeAbandoned]:
        """The latest episodes that were given up for good."""
        return list(self._controller.abandoned)

    def submit(
        self, task: TaskLike, workflow: Any = None, *, options: Mapping[str, Any] | None = None, should_accept: Accept = None
    ) -> int:
        """Have a group of episodes run on a task as soon as no bound binds; returns the group's number."""
        return self._run(self._controller.submit(task, workflow, options=options, should_accept=should_accept))

    def wait(self, count: int, timeout: float = WAIT_SECONDS) -> RolloutBatch:
        """The oldest `count` groups that have finished and that nobody has taken."""
        return self._run(self._controller.wait(count, timeout))

    def rollout_batch(
        self,
        tasks: Iterable[TaskLike],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        should_accept: Accept = None,
        timeout: float = WAIT_SECONDS,
    ) -> RolloutBatch:
        """Run these tasks to their ends."""
        rolled = self._controller.rollout_batch(tasks, workflow, options=options, should_accept=should_accept, timeout=timeout)
        return self._run(rolled)

    def prepare_batch(
        self,
        tasks: Iterable[Any],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        should_accept: Accept = None,
        timeout: float = WAIT_SECONDS,
    ) -> RolloutBatch:
        """The next batch of `trainer.batch_size` groups, while further tasks run ahead as far as staleness allows."""
        prepared = self._controller.prepare_batch(tasks, workflow, options=options, should_accept=should_accept, timeout=timeout)
        return self._run(prepared)

    def evaluate(
        self,
        tasks: Sequence[TaskLike],
        workflow: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        greedy: bool = False,
        timeout: float = WAIT_SECONDS,
    ) -> Evaluation:
        """Run each of these tasks once and train nothing of it."""
        return self._run(self._controller.evaluate(tasks, workflow, options=options, greedy=greedy, timeout=timeout))

    def trajectories(self, batch: RolloutBatch) -> list[Trajectory]:
        """The trajectories of a batch of this controller."""
        return self._run(self._controller.trajectories(batch))

    def update_weights(
        self, weights: WeightsPublished | WeightsLocation | Path | str, version: int | None = None, *, timeout: float = LOAD_SECONDS
    ) -> int:
        """Have every inference worker generate with these weights; returns their version."""
        return self._run(self._controller.update_weights(weights, version, timeout=timeout))

    def pause(self) -> None:
        """Let no episode start; what runs goes on to its end."""
        self._run(self._controller.pause())

    def resume(self) -> None:
        """Let episodes start again."""
        self._run(self._controller.resume())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._thread is not None:
            return self._thread.run(coroutine)
        nowhere = LoopThread()  # not started, or closed: the controller says so itself
        try:
            return nowhere.run(coroutine)
        finally:
            nowhere.close()
