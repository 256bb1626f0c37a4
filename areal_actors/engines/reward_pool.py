"""Reward functions in processes of their own, with a deadline that is kept.

A reward function is code that nobody has tested on what a model writes: it loops, exhausts a regular expression or ends
its process. Here that costs one score: the process is killed and replaced, and the score becomes an error with a name.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from pebble import ProcessExpired, ProcessPool

from areal_actors.errors import ArealError, RewardError
from areal_actors.rewards import Reward, check_reward, resolve_reward, task_name


class RewardPool:
    """Child processes that score outputs with one reward function. Nothing starts before the first score."""

    def __init__(
        self, reward: str, workers: int, timeout_seconds: float, root: Path = Path(), *, options: Mapping[str, Any] | None = None
    ) -> None:
        """Take a reward's name and options, as `resolve_reward` understands them; the children load it, this process never does."""
        self.reward = reward
        self._options = msgspec.msgpack.encode(options or {})
        self.timeout_seconds = timeout_seconds
        self._root = root.resolve()
        self._awaited: set[asyncio.Future[tuple[float, str]]] = set()
        self._pool = ProcessPool(
            max_workers=workers,
            context=multiprocessing.get_context("spawn"),  # no locks, sockets or loaded libraries of this process come along
            initializer=_prepare,
            initargs=(reward, self._root, self._options),
        )

    async def score(self, task_data: Mapping[str, Any], output: str) -> float:
        """What the reward function says; scores wait in line for a free process, and the deadline counts from there.

        Raises:
            RewardError: the function raised, hung, ended its process, or returned what is not a finite number; or it
                cannot be loaded. The message names the reward and the task.
        """
        subject, task = f"reward {self.reward}", f"task {task_name(task_data)}"
        closed = f"{subject}: the pool was closed before the score was there ({task})"
        try:
            args = (self.reward, self._root, self._options, dict(task_data), output)
            future = self._pool.schedule(_score, args=args, timeout=self.timeout_seconds)
        except RuntimeError as error:  # the pool takes nothing more
            raise RewardError(closed) from error
        answer = asyncio.wrap_future(future)
        self._awaited.add(answer)
        try:
            value, failure = await answer
        except TimeoutError as error:
            raise RewardError(f"{subject} hung for more than {self.timeout_seconds:g} s and was killed ({task})") from error
        except ProcessExpired as error:
            raise RewardError(f"{subject} ended its process with exit code {error.exitcode} ({task})") from error
        except BrokenProcessPool as error:
            raise RewardError(closed) from error
        except asyncio.CancelledError as error:
            task_itself = asyncio.current_task()
            if task_itself is not None and task_itself.cancelling():
                raise
            raise RewardError(closed) from error
        finally:
            self._awaited.discard(answer)
        if failure:
            raise RewardError(f"{subject} {failure}" if task in failure else f"{subject} {failure} ({task})")
        return value

    async def close(self) -> None:
        """Drop what is not scored yet, end the processes and wait until they are gone."""
        for answer in self._awaited:
            answer.cancel()
        self._pool.stop()  # type: ignore[no-untyped-call]
        await asyncio.to_thread(self._pool.join)


def _prepare(reward: str, root: Path, options: bytes) -> None:
    """Make a child ready: it dies at once when told to, does not outlive its parent, and has loaded the function."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        _resolved(reward, root, options)
    except ArealError:
        return  # said again, and heard, when the first score is asked for


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _resolved(reward: str, root: Path, options: bytes) -> Reward:
    return resolve_reward(reward, root, msgspec.msgpack.decode(options))


def _score(reward: str, root: Path, options: bytes, task_data: dict[str, Any], output: str) -> tuple[float, str]:
    """The score, and how it failed (empty if it did not); exceptions stay here, because not every one can be sent."""
    try:
        function = _resolved(reward, root, options)
        value = function(task_data, output)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        return check_reward(value), ""
    except ArealError as error:
        return 0.0, f"failed: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the function is the user's; whatever it raises has a name
        return 0.0, f"raised {type(error).__name__}: {error}"


async def _awaited(value: Any) -> Any:
    return await value
