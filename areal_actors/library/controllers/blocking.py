"""The rollout controller for synchronous scripts: the same calls, blocking, with the event loop in a thread.

Rollouts continue in that thread while the script trains, so training is still asynchronous.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from areal_actors.library.controllers.backends import Backend
from areal_actors.library.controllers.rollout import AsyncRolloutController
from areal_actors.messages import EpisodeAbandoned
from areal_actors.recipe.recipe import Recipe

P = ParamSpec("P")
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
        self.run(_end_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_executor() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def _blocking(
    method: Callable[Concatenate[AsyncRolloutController, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RolloutController, P], T]:
    @wraps(method)
    def call(self: RolloutController, /, *args: P.args, **options: P.kwargs) -> T:
        return self.run(method(self.controller, *args, **options))

    return call


class RolloutController:
    """Blocking `AsyncRolloutController`; see there for arguments and errors. Use it in a `with`."""

    submit = _blocking(AsyncRolloutController.submit)
    wait = _blocking(AsyncRolloutController.wait)
    collect = _blocking(AsyncRolloutController.collect)
    rollout_batch = _blocking(AsyncRolloutController.rollout_batch)
    prepare_batch = _blocking(AsyncRolloutController.prepare_batch)
    evaluate = _blocking(AsyncRolloutController.evaluate)
    trajectories = _blocking(AsyncRolloutController.trajectories)
    update_weights = _blocking(AsyncRolloutController.update_weights)
    pause = _blocking(AsyncRolloutController.pause)
    resume = _blocking(AsyncRolloutController.resume)

    def __init__(self, recipe: Recipe, backend: Backend | None = None, *, root: Path = Path()) -> None:
        """See `AsyncRolloutController`."""
        self.controller = AsyncRolloutController(recipe, backend, root=root)
        self._thread: LoopThread | None = None

    def start(self) -> Self:
        """Start the actors."""
        self._thread = LoopThread()
        try:
            self._thread.run(self.controller.start())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop the actors."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.run(self.controller.close())
            thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def weight_version(self) -> int:
        """Version of the newest weights passed to `update_weights`; -1 before the first."""
        return self.controller.weight_version

    def is_healthy(self) -> bool:
        """True while episodes can run: it is started, not closed, and no actor has failed."""
        return self.controller.is_healthy()

    @property
    def abandoned(self) -> Sequence[EpisodeAbandoned]:
        """The latest episodes that failed after all retries."""
        return list(self.controller.abandoned)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns or raises the result of a coroutine in the controller's event loop."""
        if self._thread is not None:
            return self._thread.run(coroutine)
        temporary = LoopThread()  # not started, or closed: the controller raises the error
        try:
            return temporary.run(coroutine)
        finally:
            temporary.close()
