"""The rollout controller for synchronous scripts: the same calls, blocking, with the event loop in a thread.

Rollouts continue in that thread while the script trains, so training is still asynchronous.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from areal_actors.core.values import Trajectory, WeightsLocation
from areal_actors.library.controllers.backends import Backend
from areal_actors.library.controllers.batch import RolloutBatch
from areal_actors.library.controllers.driver import LOAD_SECONDS
from areal_actors.library.controllers.evaluation import Evaluation
from areal_actors.library.controllers.rollout import WAIT_SECONDS, AsyncRolloutController
from areal_actors.library.controllers.tasks import TaskLike
from areal_actors.library.controllers.workflows import Accept
from areal_actors.messages import EpisodeAbandoned, WeightsPublished
from areal_actors.recipe.recipe import Recipe

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="rollouts")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns or raises the coroutine's result; cancels it on interrupt."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        """Cancel all tasks, and stop the loop."""
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
    """Blocking `AsyncRolloutController`; see there for arguments and errors. Use it in a `with`."""

    def __init__(self, recipe: Recipe, backend: Backend | None = None, *, root: Path = Path()) -> None:
        """See `AsyncRolloutController`."""
        self._controller = AsyncRolloutController(recipe, backend, root=root)
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
        """Stop the actors."""
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
        """Version of the newest weights passed to `update_weights`; -1 before the first."""
        return self._controller.weight_version

    @property
    def abandoned(self) -> Sequence[EpisodeAbandoned]:
        """The latest episodes that failed after all retries."""
        return list(self._controller.abandoned)

    def submit(
        self, task: TaskLike, workflow: Any = None, *, options: Mapping[str, Any] | None = None, should_accept: Accept = None
    ) -> int:
        """Run a group of episodes on a task as soon as no limit is reached; returns the group's number."""
        return self._run(self._controller.submit(task, workflow, options=options, should_accept=should_accept))

    def wait(self, count: int, timeout: float = WAIT_SECONDS) -> RolloutBatch:
        """Returns the oldest `count` finished groups that are in no batch yet."""
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
        """Run these tasks to completion."""
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
        """Returns the next batch of `trainer.batch_size` groups, while further tasks run ahead as far as staleness allows."""
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
        """Run each of these tasks once, without training on them."""
        return self._run(self._controller.evaluate(tasks, workflow, options=options, greedy=greedy, timeout=timeout))

    def trajectories(self, batch: RolloutBatch) -> list[Trajectory]:
        """Returns the trajectories of a batch of this controller."""
        return self._run(self._controller.trajectories(batch))

    def update_weights(
        self, weights: WeightsPublished | WeightsLocation | Path | str, version: int | None = None, *, timeout: float = LOAD_SECONDS
    ) -> int:
        """Load these weights into every inference worker; returns their version."""
        return self._run(self._controller.update_weights(weights, version, timeout=timeout))

    def pause(self) -> None:
        """Start no more episodes; running ones continue to their end."""
        self._run(self._controller.pause())

    def resume(self) -> None:
        """Let episodes start again."""
        self._run(self._controller.resume())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._thread is not None:
            return self._thread.run(coroutine)
        temporary = LoopThread()  # not started, or closed: the controller raises the error
        try:
            return temporary.run(coroutine)
        finally:
            temporary.close()
