"""Adapts reward functions that were written for other trainers, recognised by the names of their arguments.

verl:  def compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | {"score": float, …}
TRL:   def reward(completions, prompts=None, **columns) -> [float]      lists of one element here
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from areal_actors.core.errors import RewardError

TRUTHS = ("ground_truth", "answer", "solution")
"""Fields of a task with verl's ground truth, after `reward_model.ground_truth`, in order of preference."""
UNAVAILABLE = frozenset({"completion_ids", "prompt_ids", "completions_ids"})
"""Arguments of TRL that nothing here has."""

Function = Callable[..., Any]


def adapt(function: Function) -> Function | None:
    """A function of a task and an output that calls this one as its trainer would; None if it has no such signature."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if "solution_str" in parameters:
        return _verl(function, parameters)
    if "completions" in parameters and not UNAVAILABLE & {
        name for name, parameter in parameters.items() if parameter.default is parameter.empty
    }:
        return _trl(function, parameters)
    return None


def _verl(function: Function, parameters: Mapping[str, inspect.Parameter]) -> Function:
    @wraps(function)
    def reward(task: dict[str, Any], output: str, **options: Any) -> Any:
        given = {
            "data_source": task.get("data_source", ""),
            "solution_str": output,
            "ground_truth": _truth(task),
            "extra_info": task.get("extra_info"),
            **options,
        }
        return _then(function(**_select_arguments(given, parameters)), _of_verl)

    return _as_task_and_output(reward)


def _trl(function: Function, parameters: Mapping[str, inspect.Parameter]) -> Function:
    @wraps(function)
    def reward(task: dict[str, Any], output: str, **options: Any) -> Any:
        chat = task.get("messages")
        given = {name: [value] for name, value in task.items() if name not in {"messages", "prompt", "completion"}}
        given |= {
            "prompts": [chat or task.get("question", "")],
            "completions": [[{"role": "assistant", "content": output}] if chat else output],
            **options,
        }
        return _then(function(**_select_arguments(given, parameters)), _of_trl)

    return _as_task_and_output(reward)


def _as_task_and_output(function: Function) -> Function:
    """Hide the signature of the wrapped function, which `inspect` would show."""
    del function.__wrapped__  # type: ignore[attr-defined]
    return function


def _select_arguments(given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The arguments that a function has."""
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def _truth(task: Mapping[str, Any]) -> Any:
    """Ground truth of verl: as its rows have it, not as text."""
    model = task.get("reward_model")
    if isinstance(model, Mapping) and "ground_truth" in model:
        return model["ground_truth"]
    return next((task[name] for name in TRUTHS if name in task), None)


def _then(value: Any, read: Function) -> Any:
    """Apply a function to a value, or to that of a coroutine."""
    if not inspect.isawaitable(value):
        return read(value)

    async def read_awaited() -> Any:
        return read(await value)

    return read_awaited()


def _of_verl(value: Any) -> Any:
    """Score of verl, or the mapping with `score` as one with `reward` and its numbers."""
    if not isinstance(value, Mapping) or "score" not in value:
        return value
    numbers = {name: number for name, number in value.items() if name != "score" and isinstance(number, int | float)}
    return {**numbers, "reward": value["score"]}


def _of_trl(value: Any) -> Any:
    """The one element of TRL's list."""
    if not hasattr(value, "__len__") or len(value) != 1:
        raise RewardError(f"a reward with `completions` must return a list with a number for each, got {value!r:.60}")
    return value[0]
