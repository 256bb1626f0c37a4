"""Reward functions in child processes, with an enforced deadline.

A reward function is code that is untested on the outputs of a model: it may loop, backtrack in a regular expression or end its
process. Here that costs one score: the process is killed and replaced, and the score becomes a `RewardError`.
"""

from __future__ import annotations

import asyncio
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

from areal_actors.core.errors import ArealError, RewardError
from areal_actors.rewards import Reward, Score, resolve_reward, task_name
from areal_actors.rewards.scored import checked, scored


class RewardPool:
    """Child processes that score outputs with one reward function; they start with the first score."""

    def __init__(
        self, reward: str, workers: int, timeout_seconds: float, root: Path = Path(), *, options: Mapping[str, Any] | None = None
    ) -> None:
        """`reward` and `options` are those of `resolve_reward`; the children load the function, this process never does."""
        self.reward = reward
        self._options = msgspec.msgpack.encode(options or {})
        self.timeout_seconds = timeout_seconds
        self._root = root.resolve()
        self._pending: set[asyncio.Future[tuple[Score, str]]] = set()
        self._pool = ProcessPool(
            max_workers=workers,
            context=multiprocessing.get_context("spawn"),  # children inherit no locks, sockets or loaded libraries
            initializer=_init_worker,
            initargs=(reward, self._root, self._options),
        )

    async def score(self, task_data: Mapping[str, Any], output: str) -> Score:
        """Returns the value of the reward function; scores queue for a free process, and the deadline counts from there.

        Raises:
            RewardError: the function raised, hung, ended its process, or did not return a finite number; or it
                cannot be loaded. The message names the reward and the task.
        """
        subject, task = f"reward {self.reward}", f"task {task_name(task_data)}"
        closed = f"{subject}: the pool was closed before the score was computed ({task})"
        try:
            args = (self.reward, self._root, self._options, dict(task_data), output)
            future = self._pool.schedule(_score, args=args, timeout=self.timeout_seconds)
        except RuntimeError as error:  # the pool is closed
            raise RewardError(closed) from error
        answer = asyncio.wrap_future(future)
        self._pending.add(answer)
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
            self._pending.discard(answer)
        return checked(self.reward, task_data, value, failure)

    async def close(self) -> None:
        """Cancel pending scores, end the processes and wait for their exit."""
        for answer in self._pending:
            answer.cancel()
        self._pool.stop()  # type: ignore[no-untyped-call]
        await asyncio.to_thread(self._pool.join)


def _init_worker(reward: str, root: Path, options: bytes) -> None:
    """Initialise a child: default SIGTERM, exit together with the parent, function loaded."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        _load_reward(reward, root, options)
    except ArealError:
        return  # the first score raises it again and reports it


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _load_reward(reward: str, root: Path, options: bytes) -> Reward:
    return resolve_reward(reward, root, msgspec.msgpack.decode(options))


def _score(reward: str, root: Path, options: bytes, task_data: dict[str, Any], output: str) -> tuple[Score, str]:
    """Returns the score and a failure text (empty without a failure); exceptions stay here because not all can be pickled."""
    try:
        function = _load_reward(reward, root, options)
    except ArealError as error:
        return Score(0.0), f"failed: {error}"
    except BaseException as error:  # noqa: BLE001 - the user's file may raise anything
        return Score(0.0), f"raised {type(error).__name__}: {error}"
    return scored(function, task_data, output)
