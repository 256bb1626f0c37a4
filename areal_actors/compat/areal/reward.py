"""Reward functions of AReaL's programs: called in child processes, with a deadline.

A failure is an error, never a reward of 0.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from areal_actors.core.errors import ArealError, RewardError
from areal_actors.core.loading import load_named
from areal_actors.rewards import check_reward
from areal_actors.rewards.gsm8k import gsm8k
from areal_actors.rewards.math_equivalence import MathEquivalence
from areal_actors.rollout.episode_context import EpisodeContext, workflow_context

NOT_IMPORTABLE = ("__main__", "__mp_main__", "loaded_")
"""Beginnings of the names of modules that a child process loads by their file."""


class AsyncRewardWrapper:
    """Awaits a plain reward function, which runs in a process that is killed when it is late.

    In a process of `runner = "subprocess"` it is called directly: that process is killed at the episode's deadline.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any],
        timeout_seconds: float = 15,
        max_workers: int | None = None,
        max_retries: int = 3,
    ) -> None:
        """`max_workers`: processes, which all wrappers of the function share; `max_retries` of a call that fails.

        Raises:
            RewardError: the function is not defined at the top of a file, so that no other process can load it.
        """
        self.reward_fn = reward_fn
        self.timeout_seconds = timeout_seconds
        self.max_workers = max_workers or max((os.cpu_count() or 1) // 2, 1)
        self.max_retries = max_retries
        self._spec = function_spec(reward_fn)

    async def __call__(self, *args: Any, **named: Any) -> float:
        """Return the reward.

        Raises:
            RewardError: the function raised, was late, ended its process, or returned no finite number, in every
                attempt.
        """
        if workflow_context.within() is None and EpisodeContext.from_environment(os.environ).episode:
            return check_reward(self.reward_fn(*args, **named))
        for attempt in range(self.max_retries + 1):
            try:
                return await self._score(args, named)
            except RewardError:
                if attempt == self.max_retries:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _score(self, args: tuple[Any, ...], named: dict[str, Any]) -> float:
        subject = f"reward {self._spec}"
        try:
            future = _processes(self._spec, self.max_workers).schedule(
                _call, args=(self._spec, args, named), timeout=self.timeout_seconds
            )
            value, failure = await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise RewardError(f"{subject} took more than {self.timeout_seconds:g} s and was killed") from error
        except ProcessExpired as error:
            raise RewardError(f"{subject} ended its process with exit code {error.exitcode}") from error
        if failure:
            raise RewardError(f"{subject} raised {failure}")
        return check_reward(value)


def function_spec(function: Callable[..., Any]) -> str:
    """The name by which another process loads a function: `path.py:name` or `package.module:name`.

    Raises:
        RewardError: it has none: it is a lambda, a method, or defined in another function.
    """
    function = inspect.unwrap(function)
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not name.isidentifier() or not inspect.isfunction(function):
        raise RewardError(
            f"reward function {name or function!r} must be defined at the top of a file, so that its process can"
            " load it"
        )
    if module.startswith(NOT_IMPORTABLE):
        return f"{Path(function.__code__.co_filename).resolve()}:{name}"
    return f"{module}:{name}"


@cache
def _processes(spec: str, workers: int) -> ProcessPool:
    """The processes of a reward function, which start with its first reward and end with this process.

    They inherit no locks, sockets or loaded libraries, and load the function before the time of a reward counts.
    """
    spawn = multiprocessing.get_context("spawn")
    return ProcessPool(max_workers=workers, context=spawn, initializer=_load_function, initargs=(spec,))


def _load_function(spec: str) -> None:
    with suppress(ArealError):  # the first reward raises it again and reports it
        _function(spec)


def _call(spec: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, str]:
    """The value and the failure, empty if there is none; exceptions stay here because not all can be pickled."""
    try:
        return _function(spec)(*args, **named), ""
    except BaseException as error:  # noqa: BLE001 - the user's function may raise anything
        return None, f"{type(error).__name__}: {error}"


@cache
def _function(spec: str) -> Callable[..., Any]:
    function: Callable[..., Any] = load_named(spec, Path())
    return function


class MathVerifyWorker:
    """Compares answers with `math-verify`, in a main thread; see `rewards/math_equivalence.py`."""

    def __init__(self) -> None:
        self._compare = partial(MathEquivalence().__call__)

    def verify(self, response: str, ground_truth: str) -> float:
        """Return 1.0 if the response states the truth, else 0.0.

        Raises:
            RewardError: the truth is no mathematics.
        """
        return self._compare({"answer": ground_truth}, response)


@cache
def get_math_verify_worker() -> MathVerifyWorker:
    """The worker of this process."""
    return MathVerifyWorker()


def gsm8k_reward_fn(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], answer: str, **_: Any
) -> float:
    """1.0 if the last number of the completion is that of the answer, else 0.0; see `rewards/gsm8k.py`."""
    del prompt, prompt_ids, completion_ids
    return gsm8k({"answer": answer}, completions)
