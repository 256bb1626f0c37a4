"""Reward functions in child processes, with an enforced deadline.

A reward function is code that is untested on the outputs of a model: it may loop, backtrack in a regular expression or
end its process. Here that costs one score: the process is killed and replaced, and the score becomes a `RewardError`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import msgspec
from pebble import ProcessExpired, ProcessPool

from areal_actors.core.errors import ArealError, RewardError
from areal_actors.rewards import Reward, Score, resolve_reward
from areal_actors.rewards.checks import task_name
from areal_actors.rewards.judge_host import HostLost, JudgeHost, SpawnFailed, is_coroutine_reward
from areal_actors.rewards.score_cache import ScoreCache
from areal_actors.rewards.scored import check_value, score_output


class RewardPool:
    """Child processes that score outputs with one reward function; they start with the first score.

    Coroutine functions run together in one process (`judge_host.py`), others one at a time in each.
    """

    def __init__(
        self,
        reward: str,
        workers: int,
        timeout_seconds: float,
        root: Path = Path(),
        *,
        options: Mapping[str, Any] | None = None,
        cached: int = 0,
    ) -> None:
        """`reward` and `options` are those of `resolve_reward`.

        The children load the function, this process never does.
        `cached`: number of scores that are kept by the text of task and output, and not computed again.
        """
        self.reward = reward
        self._options = msgspec.msgpack.encode(options or {})
        self.timeout_seconds = timeout_seconds
        self._root = root.resolve()
        self._pending: set[asyncio.Future[tuple[Score, str]]] = set()
        self._is_closed = False
        self._spawn_error: OSError | None = None
        self._cache = ScoreCache(cached) if cached else None
        coroutine = is_coroutine_reward(reward, self._root)
        self._judges = JudgeHost(reward, self._root, self._options, timeout_seconds) if coroutine else None
        self._pool = ProcessPool(
            max_workers=workers,
            context=_WatchedSpawn(self._on_spawn_failed),  # children inherit no locks, sockets or loaded libraries
            initializer=_init_worker,
            initargs=(reward, self._root, self._options),
        )

    async def score(self, task_data: Mapping[str, Any], output: str) -> Score:
        """Returns the value of the reward function.

        Scores queue for a free process, and the deadline counts from there.

        Raises:
            RewardError: the function raised, hung, ended its process, or did not return a finite number; or it
                cannot be loaded. The message names the reward and the task.
            SpawnFailed: no process can be started; the pool is of no use any more.
        """
        if self._cache is None:
            return await self._compute(task_data, output)
        key = self._cache.key(task_data, output)
        if (kept := self._cache.get(key)) is None:
            return self._cache.put(key, await self._compute(task_data, output))
        return kept

    async def _compute(self, task_data: Mapping[str, Any], output: str) -> Score:
        if self._judges is None:
            return await self._score_alone(task_data, output)
        while True:
            try:
                result = await self._judges.score(task_data, output)
            except HostLost as error:
                if self._is_closed:
                    raise RewardError(self._closed_text(task_data)) from error
                if error.is_named:
                    continue
                return await self._score_alone(task_data, output)  # this score or one beside it ended the process
            metrics = {**result.metrics, "judge_seconds": result.seconds}
            score = Score(result.reward, metrics, result.spans, result.places)
            return check_value(self.reward, task_data, score, result.failure)

    async def _score_alone(self, task_data: Mapping[str, Any], output: str) -> Score:
        subject, task = f"reward {self.reward}", f"task {task_name(task_data)}"
        self._refuse_lost_pool()
        try:
            args = (self.reward, self._root, self._options, dict(task_data), output)
            future = self._pool.schedule(_score, args=args, timeout=self.timeout_seconds)
        except OSError as error:
            raise SpawnFailed(f"a process for rewards cannot be started: {error.strerror or error}") from error
        except RuntimeError as error:  # the pool is closed
            self._refuse_lost_pool()
            raise RewardError(self._closed_text(task_data)) from error
        answer = asyncio.wrap_future(future)
        self._pending.add(answer)
        try:
            value, failure = await answer
        except TimeoutError as error:
            raise RewardError(
                f"{subject} hung for more than {self.timeout_seconds:g} s and was killed ({task})"
            ) from error
        except ProcessExpired as error:
            raise RewardError(f"{subject} ended its process with exit code {error.exitcode} ({task})") from error
        except BrokenProcessPool as error:
            self._refuse_lost_pool(error)
            raise RewardError(self._closed_text(task_data)) from error
        except asyncio.CancelledError as error:
            self._refuse_lost_pool()
            task_itself = asyncio.current_task()
            if task_itself is not None and task_itself.cancelling():
                raise
            raise RewardError(self._closed_text(task_data)) from error
        finally:
            self._pending.discard(answer)
        return check_value(self.reward, task_data, value, failure)

    def _closed_text(self, task_data: Mapping[str, Any]) -> str:
        return f"reward {self.reward}: the pool was closed before the score was computed (task {task_name(task_data)})"

    def _on_spawn_failed(self, error: OSError) -> None:
        """Called in a thread of the pool, which ends with this error: fail all scores that wait for it."""
        self._spawn_error = error
        for answer in tuple(self._pending):
            answer.get_loop().call_soon_threadsafe(answer.cancel)

    def _refuse_lost_pool(self, broken: BaseException | None = None) -> None:
        if not self._is_closed and (self._spawn_error or broken):
            error = self._spawn_error or broken
            raise SpawnFailed(
                f"a process for rewards cannot be started: {getattr(error, 'strerror', None) or error}"
            ) from error

    async def close(self) -> None:
        """Cancel pending scores, end the processes and wait for their exit."""
        self._is_closed = True
        if self._judges is not None:
            await self._judges.close()
        for answer in self._pending:
            answer.cancel()
        self._pool.stop()  # type: ignore[no-untyped-call]
        await asyncio.to_thread(self._pool.join)


class _WatchedSpawn(SpawnContext):
    """Starts processes, and reports the first that cannot be started: the pool would only end its thread."""

    def __init__(self, on_failed: Callable[[OSError], None]) -> None:
        super().__init__()
        self._on_failed = on_failed

    def Process(self, *args: Any, **named: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802 - the name of the method
        """Returns a process that reports if it cannot be started."""
        process = _WatchedProcess(*args, **named)
        process.on_failed = self._on_failed
        return process


class _WatchedProcess(SpawnProcess):
    on_failed: Callable[[OSError], None]

    def start(self) -> None:
        """Start the process, or report why not."""
        on_failed = self.__dict__.pop("on_failed")  # the process is pickled for its start
        try:
            super().start()
        except OSError as error:
            on_failed(error)
            raise


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
    """Returns the score and a failure text (empty without a failure).

    Exceptions stay here because not all can be pickled.
    """
    try:
        function = _load_reward(reward, root, options)
    except ArealError as error:
        return Score(0.0), f"failed: {error}"
    except BaseException as error:  # noqa: BLE001 - the user's file may raise anything
        return Score(0.0), f"raised {type(error).__name__}: {error}"
    return score_output(function, task_data, output)
