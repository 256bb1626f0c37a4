"""Reward functions: what an answer is worth, as a real number.

A reward function takes the task's row and the agent's output and returns a number, or is a coroutine function that
does. It may be any function of the user's, named in the recipe as `path.py:function`. What it raises is a failure with
a name, never a reward of 0.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from areal_actors.errors import RecipeError
from areal_actors.loading import load_named
from areal_actors.rewards import gsm8k
from areal_actors.rewards.checks import check_reward, task_name

__all__ = ["REWARDS", "Reward", "check_reward", "resolve_reward", "task_name"]

Reward = Callable[[dict[str, Any], str], Any]
"""Returns a real number, or an awaitable of one; `check_reward` makes sure of it."""

REWARDS: Mapping[str, Reward] = {"gsm8k": gsm8k.gsm8k}


def resolve_reward(name: str, root: Path = Path()) -> Reward:
    """The reward function called `name`, or the function of a `path.py:function` (relative to `root`).

    Raises:
        RecipeError: there is no such function, or it cannot be called with a task and an output.
    """
    if name in REWARDS:
        return REWARDS[name]
    if ":" not in name:
        near = difflib.get_close_matches(name, REWARDS, n=1)
        guess = f"did you mean `{near[0]}`? " if near else ""
        known = ", ".join(REWARDS)
        raise RecipeError(f"`task.reward`: no reward is called `{name}`; {guess}known: {known}; one of your own: `path.py:function`")
    function: Reward = load_named(name, root)
    if not callable(function) or not _takes_task_and_output(function):
        raise RecipeError(f"`task.reward`: `{name}` must take the task's row and the output: `def reward(task, output)`")
    return function


def _takes_task_and_output(function: Reward) -> bool:
    try:
        inspect.signature(function).bind({}, "")
    except TypeError:
        return False
    except ValueError:  # built-in functions have no signature to look at
        return True
    return True
